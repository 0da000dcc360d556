// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// TestRefusal checks of which Service a line is that iptables-restore has refused, and which errors are no refusals.
func TestRefusal(t *testing.T) {
	b, change := &Dataplane{}, &desired.Change{}
	for i, name := range []string{"web", "web-1"} {
		port := desired.ServicePort{Namespace: "default", Name: name}
		pool := desired.PoolChange{ID: desired.PoolID(i), Service: port}
		key := desired.FrontendKey{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80), Protocol: desired.TCP}
		change.Pools = append(change.Pools, pool)
		change.Frontends = append(change.Frontends, desired.FrontendChange{New: &desired.Frontend{FrontendKey: key, Service: port}})
	}
	b.pools = make(dataplane.Pools[pool], 0)
	for i := range change.Pools {
		p := &pool{Pool: dataplane.NewPool(&change.Pools[i])}
		p.Refer(change.Frontends[i].New)
		b.pools.Set(change.Pools[i].ID, p)
	}
	const unnamed = "a Refusal without a Service"
	check := func(failed error, want string) {
		t.Helper()
		got := ""
		if refusal := (*dataplane.Refusal)(nil); errors.As(b.explain(failed, change), &refusal) {
			got = cmp.Or(refusal.Service.Name, unnamed)
		}
		if got != want {
			t.Errorf("%v: %q, want %q", failed, got, want)
		}
	}
	for _, c := range []struct{ script, want string }{
		{"echo 'line 3 failed (-A SLIP-TREE -m comment --comment \"default/web-1\" -g SLIP-SVC-X)'; exit 1", "web-1"},
		{"echo 'line 3 failed (-A " + b.pools.Get(0).name() + " -j DNAT)'; exit 1", "web"},
		{"echo 'line 7 failed (-A SLIP-TREE -m comment --comment \"default/permissions\" -g SLIP-SVC-X)'; exit 4", unnamed},
		{"echo 'line 7 failed (COMMIT)'; exit 1", unnamed},
		{"echo 'line 7: RULE_APPEND failed (No such file or directory) (-A SLIP-TREE -m comment --comment \"default/web\" -g X)'; exit 4", "web"},
		{"echo 'line 7: RULE_APPEND failed (No such file or directory)'; exit 4", ""},
		{"echo 'line 7: RULE_APPEND failed (Cannot allocate memory) (-A SLIP-TREE -m comment --comment \"default/web\" -g X)'; exit 4", ""},
		{"echo 'line 7 failed (Too many open files)'; exit 4", ""},
		{"echo 'line 7: CHAIN_DEL failed (Device or resource busy)'; exit 4", ""},
		{"echo 'Could not fetch rule set generation id: Invalid argument'; exit 4", ""},
		{"echo 'Could not fetch rule set: No buffer space available'; exit 4", ""},
		{"echo 'Another app is currently holding the xtables lock; -A SLIP -m comment --comment \"default/web\" -g X'; exit 4", ""},
		{"kill -9 $$", ""},
	} {
		_, failed := run(t.Context(), 0, nil, "sh", "-c", "exec >&2; "+c.script)
		if failed == nil {
			t.Fatalf("%s does not fail", c.script)
		}
		check(failed, c.want)
	}
	for _, err := range []error{
		&os.SyscallError{Syscall: "fork", Err: unix.EAGAIN},
		&exec.Error{Name: "iptables-nft-restore", Err: exec.ErrNotFound},
		fmt.Errorf("IP set: %w", unix.EBUSY),
	} {
		check(err, "")
	}
}
