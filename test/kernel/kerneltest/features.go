// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Root is user 0, which commands that tests run ask for; capabilities do not count.
var Root = Define("root", func() error {
	if id := os.Geteuid(); id != 0 {
		return fmt.Errorf("running as user %d", id)
	}
	return nil
})

// OwnClock is a clock that a test may set: that of User Mode Linux.
var OwnClock = Define("clock of its own", func() error {
	if !UML() {
		return errors.New("not User Mode Linux, so all processes share the clock")
	}
	return nil
}, Root)

// NetNS is the right and the ability to make network namespaces (CONFIG_NET_NS; in a
// container, CAP_SYS_ADMIN).
var NetNS = Define("network namespaces", func() error {
	return inNewNetNS(func() error { return nil })
}, Root)

// inNewNetNS runs f, and the commands that it starts, in a network namespace of its own.
func inNewNetNS(f func() error) error {
	ns, err := lab.NewNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(f)
}

// SCTPSockets is sockets of protocol SCTP, in both styles and both address families
// (CONFIG_IP_SCTP). Forwarding and tracking SCTP does not need them.
var SCTPSockets = Define("SCTP sockets", func() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, style := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(family, style|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
			if err != nil {
				return fmt.Errorf("socket: %w", err)
			}
			unix.Close(fd)
		}
	}
	return nil
})

// NFTables is nf_tables with tables of family inet (CONFIG_NF_TABLES_INET, Linux 3.14).
var NFTables = Define("nf_tables", func() error {
	return withProbeTable(func(*nftables.Conn, *nftables.Table) {})
}, NetNS)

// Flowtable is nf_tables flowtables of family inet and the rules that put connections into
// them and count these (CONFIG_NF_FLOW_TABLE_INET and CONFIG_NFT_FLOW_OFFLOAD, Linux 4.16;
// before Linux 6.2 CONFIG_NFT_OBJREF).
var Flowtable = Define("flowtables", func() error {
	return withProbeTable(func(conn *nftables.Conn, table *nftables.Table) {
		flowtable := conn.AddFlowtable(&nftables.Flowtable{
			Table:    table,
			Name:     "probe",
			Hooknum:  nftables.FlowtableHookIngress,
			Priority: nftables.FlowtablePriorityRef(0),
			Devices:  []string{"lo"},
		})
		chain := conn.AddChain(&nftables.Chain{
			Table:    table,
			Name:     "forward",
			Type:     nftables.ChainTypeFilter,
			Hooknum:  nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter,
		})
		counter := conn.AddObj(&nftables.CounterObj{Table: table, Name: "probe"}).(*nftables.CounterObj)
		conn.AddRule(&nftables.Rule{
			Table: table,
			Chain: chain,
			Exprs: []expr.Any{&expr.FlowOffload{Name: flowtable.Name}, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter.Name}},
		})
	})
}, NFTables)

// BPFIngress is BPF programs at the ingress of interfaces that may look up conntrack entries
// (CONFIG_DEBUG_INFO_BTF, Linux 6.0).
var BPFIngress = Define("BPF at ingress", func() error {
	err := withProbeTable(func(conn *nftables.Conn, table *nftables.Table) {
		chain := conn.AddChain(&nftables.Chain{Table: table, Name: "probe"})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, // loads the module of conntrack
		}})
	})
	if err != nil {
		return err
	}
	var lookup *btf.Func
	kernel, err := btf.LoadKernelSpec()
	if err == nil && kernel.TypeByName("bpf_skb_ct_lookup", &lookup) != nil {
		kernel, err = btf.LoadKernelModuleSpec("nf_conntrack")
		if err == nil {
			err = kernel.TypeByName("bpf_skb_ct_lookup", &lookup)
		}
	}
	return err
}, NFTables)

// TCX is tcx links (Linux 6.6), by which several such programs are at one interface.
var TCX = Define("tcx", func() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TCX_NEXT
	})
	if err != nil {
		return err
	}
	defer program.Close()
	return inNewNetNS(func() error {
		const loopback = 1
		l, err := link.AttachTCX(link.TCXOptions{Interface: loopback, Program: program, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		return l.Close()
	})
}, BPFIngress)

const probeTable = "kerneltest-probe"

// withProbeTable makes a table of family inet in a network namespace of its own. fill may add
// to the transaction.
func withProbeTable(fill func(*nftables.Conn, *nftables.Table)) error {
	return inNewNetNS(func() error {
		conn, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		defer func() { _ = conn.CloseLasting() }()
		fill(conn, conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: probeTable}))
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("add: %w", err)
		}
		tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
		if err == nil && !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == probeTable }) {
			err = errors.New("a table that was added is not listed")
		}
		return err
	})
}

// CGroupBPF is BPF programs at cgroups (version 2) that change the destination of connect(), and
// numbers of network namespaces (Linux 5.14). On amd64 it wants BPF's compiler: without it, on User Mode
// Linux, the tests pass but take minutes. Debian's kernel of s390x has none.
var CGroupBPF = Define("BPF at cgroups", func() error {
	if _, err := os.Stat("/proc/sys/net/core/bpf_jit_enable"); err != nil && runtime.GOARCH == "amd64" {
		return err
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer program.Close()
	path, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		return err
	}
	defer os.Remove(path)
	if err := unix.Mount("cgroup2", path, "cgroup2", 0, ""); err != nil {
		return err
	}
	defer func() { _ = unix.Unmount(path, unix.MNT_DETACH) }()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: ebpf.AttachCGroupInet4Connect, Program: program})
	if err != nil {
		return err
	}
	return l.Close()
}, Root)

// CGroup returns the root of all cgroups (version 2), mounted for the test. Require CGroupBPF first.
func CGroup(t testing.TB) string {
	t.Helper()
	path := t.TempDir()
	if err := unix.Mount("cgroup2", path, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// NFTBinary is the command nft with JSON output, from Debian's package nftables.
var NFTBinary = Define("command nft", func() error {
	return inNewNetNS(func() error {
		if err := runCommand("nft add table inet " + probeTable); err != nil {
			return err
		}
		return runCommand("nft -j list table inet " + probeTable)
	})
}, NFTables)

// IPTablesLegacy is iptables over x_tables, both address families: the commands
// iptables-legacy and ip6tables-legacy (Debian's package iptables), CONFIG_IP_NF_NAT,
// CONFIG_IP6_NF_NAT, CONFIG_NETFILTER_XT_MATCH_STATISTIC and
// CONFIG_NETFILTER_XT_TARGET_MASQUERADE; since Linux 6.17 CONFIG_NETFILTER_XTABLES_LEGACY.
var IPTablesLegacy = Define("iptables-legacy", func() error { return probeIPTables("legacy") }, NetNS)

// IPTablesNFT is iptables over nf_tables, both address families: the commands iptables-nft
// and ip6tables-nft (Debian's package iptables), the extensions named at [IPTablesLegacy] and
// CONFIG_NFT_COMPAT.
var IPTablesNFT = Define("iptables-nft", func() error { return probeIPTables("nft") }, NFTables)

// probeIPTables adds rules of the kind that kube-proxy's iptables mode has.
func probeIPTables(variant string) error {
	return inNewNetNS(func() error {
		for _, command := range []string{"iptables-", "ip6tables-"} {
			for _, rule := range []string{
				"-N PROBE",
				"-A PROBE -m statistic --mode random --probability 0.5 -j RETURN",
				"-A PROBE -m comment --comment probe -j MASQUERADE",
				"-A POSTROUTING -j PROBE",
			} {
				if err := runCommand(command + variant + " -w 10 -t nat " + rule); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// runCommand runs a command line. Its error has the first line of the command's output.
func runCommand(line string) error {
	words := strings.Fields(line)
	path, err := exec.LookPath(words[0])
	if err != nil {
		return fmt.Errorf("command %s is not installed (see test/deps.sh)", words[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, words[1:]...).CombinedOutput()
	if err != nil {
		said, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return fmt.Errorf("%s: %w: %s", line, err, said)
	}
	return nil
}

// IPSet is the kernel's IP sets of the types that iptables mode uses: CONFIG_IP_SET_HASH_IP,
// _HASH_IPPORT, _HASH_IPPORTNET, _HASH_NET and _BITMAP_PORT, and CONFIG_NETFILTER_XT_SET.
var IPSet = Define("IP sets", func() error {
	return inNewNetNS(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		ports := netlink.IpsetCreateOptions{PortTo: 1<<16 - 1}
		if err := h.IpsetCreate("probe ports", "bitmap:port", ports); err != nil {
			return fmt.Errorf("bitmap:port: %w", err)
		}
		for _, typ := range []string{"hash:ip", "hash:ip,port", "hash:ip,port,net", "hash:net"} {
			if err := h.IpsetCreate("probe "+typ, typ, netlink.IpsetCreateOptions{Family: unix.AF_INET6}); err != nil {
				return fmt.Errorf("%s: %w", typ, err)
			}
		}
		return nil
	})
}, NetNS)

// IPVS is the kernel's own load balancer, which kube-proxy's IPVS mode programs
// (CONFIG_IP_VS).
var IPVS = Define("IPVS", func() error {
	return inNewNetNS(func() error {
		if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
			return fmt.Errorf("generic netlink family IPVS: %w", err)
		}
		return nil
	})
}, NetNS)
