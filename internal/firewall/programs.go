// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// program is a BPF program at a hook that packets on the fast path skip (a link of the type netfilter, Linux 6.4).
type program struct {
	family   nfnl.Family
	hook     uint32
	priority int32
}

func (p program) String() string {
	name := map[uint32]string{unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_FORWARD: "forward", unix.NF_INET_POST_ROUTING: "postrouting"}[p.hook]
	return fmt.Sprintf("BPF program at the hook %s of %s, priority %d", name, p.family, p.priority)
}

// programs reads them.
func programs(conn *nfnl.Conn) (all []program, err error) {
	for _, f := range []nfnl.Family{nfnl.IPv4, nfnl.IPv6} {
		for hook := range uint32(unix.NF_INET_POST_ROUTING + 1) {
			if !hooks[hook] {
				continue
			}
			priorities, err := conn.Programs(f, hook)
			if errors.Is(err, unix.EINVAL) { // the kernel does not list what is at hooks
				return linkedPrograms(), nil
			}
			if err != nil {
				return nil, fmt.Errorf("list BPF programs at hooks: %w", err)
			}
			for _, p := range priorities {
				all = append(all, program{f, hook, p})
			}
		}
	}
	return all, nil
}

// linkedPrograms are those of all network namespaces, and none without CAP_SYS_ADMIN.
func linkedPrograms() (all []program) {
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil {
			continue // gone
		}
		if n := info.Netfilter(); n != nil && hooks[uint32(n.Hook)] {
			all = append(all, program{nfnl.Family(n.ProtocolFamily), uint32(n.Hook), n.Priority})
		}
	}
	return all
}
