// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

func TestBadArguments(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	newNode := func(addr string) func() error {
		return func() error {
			_, err := b.lab.Node("x", lab.NodeOptions{Addresses: prefixList(addr)})
			return err
		}
	}
	newPod := func(name, addr string) func() error {
		return func() error {
			_, err := b.n1.Pod(name, netip.MustParseAddr(addr))
			return err
		}
	}
	for _, c := range []struct {
		name string
		do   func() error
		want string // part of the error
	}{
		{"node in another subnet", newNode("192.168.7.8/24"), "not in the fabric's subnet"},
		{"node with the gateway's address", newNode("192.168.100.1/24"), "the fabric gateway's"},
		{"node with a taken address", newNode("192.168.100.12/24"), "taken by n2"},
		{"pod outside the CIDR", newPod("x", "10.1.1.1"), "not in a pod CIDR of node n1"},
		{"pod with a taken name", newPod("n2", "10.244.1.77"), "taken by node n2"},
		{"server on another's address", func() error {
			_, err := b.web1.Serve(lab.TCP, netip.AddrPortFrom(b.web2.Addr(false), 80))
			return err
		}, "pod web-1: serve TCP 10.244.1.6:80"},
		{"unknown protocol", func() error {
			_, err := b.web1.Connect(lab.Protocol("ICMP"), netip.MustParseAddrPort("1.2.3.4:5"))
			return err
		}, "unsupported"},
		{"unknown sysctl", func() error { return b.web1.SetSysctl("ipv4/nothing", "1") }, "sysctl net/ipv4/nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	// Failed attempts leave no names or addresses in use.
	if _, err := b.lab.Host("x", prefixList("192.168.100.8/24")...); err != nil {
		t.Error(err)
	}
}

func TestPodComesAgain(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for range 5 {
		p := pod(t, b.n1, "short", "10.244.1.50", "fd00:244:1::50")
		eachWay(t, func(t *testing.T, proto lab.Protocol, ipv6 bool) {
			s := serve(t, &p.Machine, proto, netip.AddrPortFrom(p.Addr(ipv6), 80))
			if _, err := b.web3.Connect(proto, s.Addr()); err != nil {
				t.Error(err)
			}
		})
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(); err != nil {
			t.Errorf("second Delete: %v", err)
		}
		links, err := b.n1.Run(t.Context(), "cat", "/proc/thread-self/net/dev")
		if err != nil || strings.Contains(string(links), p.NodeLink()+":") || !strings.Contains(string(links), b.web1.NodeLink()+":") {
			t.Errorf("links of the node after Delete: %v\n%s", err, links)
		}
	}
}

func TestNodeSysctls(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	for key, want := range map[string]string{
		"ipv4/ip_forward":                                "1",
		"ipv4/conf/eth0/rp_filter":                       "0",
		"ipv4/conf/eth0/send_redirects":                  "0",
		"ipv4/conf/all/rp_filter":                        "0",
		"ipv6/conf/all/forwarding":                       "1",
		"ipv6/conf/eth0/forwarding":                      "1",
		"ipv6/conf/eth0/accept_dad":                      "0",
		"ipv4/neigh/eth0/retrans_time_ms":                "20",
		"ipv6/neigh/eth0/retrans_time_ms":                "20",
		"ipv4/conf/" + b.web1.NodeLink() + "/rp_filter":  "0",
		"ipv6/conf/" + b.web1.NodeLink() + "/forwarding": "1",
	} {
		if got, err := b.n1.Sysctl(key); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", key, got, err, want)
		}
	}
	if got, err := b.web1.Sysctl("ipv4/ip_forward"); err != nil || got != "0" {
		t.Errorf("ip_forward of a pod is %q, %v, want 0", got, err)
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	root, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	err = b.web1.Do(func() error {
		in, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil || in == root {
			t.Errorf("in namespace %s, %v; the root is %s", in, err, root)
		}
		return b.web2.Do(func() error {
			if other, _ := os.Readlink("/proc/thread-self/ns/net"); other == in || other == root {
				t.Errorf("within: in namespace %s", other)
			}
			return mine
		})
	})
	if err != mine {
		t.Errorf("error %v, want %v", err, mine)
	}

	gone := make(chan bool)
	go func() {
		exited := true
		defer func() { gone <- exited }()
		_ = b.web1.Do(func() error { runtime.Goexit(); return nil })
		exited = false
	}()
	if !<-gone {
		t.Error("Goexit did not go on")
	}
}

// TestThreadsComeBack is not parallel: it looks at all threads at rest.
func TestThreadsComeBack(t *testing.T) {
	b := newTestbed(t)
	s := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(false), 80))
	for range 50 {
		if _, err := b.web1.Connect(lab.TCP, s.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	root, _ := os.Readlink("/proc/self/ns/net")
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	for _, th := range threads {
		if ns, err := os.Readlink(th); err == nil && ns != root {
			t.Errorf("%s is %s, want %s", th, ns, root)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	l := kerneltest.NewLab(t)
	n := node(t, l, "n", 1)
	p := pod(t, n, "p", "10.244.1.5")
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, do := range map[string]func() error{
		"Do":      func() error { return p.Do(func() error { t.Error("runs"); return nil }) },
		"Serve":   func() error { _, err := p.Serve(lab.TCP, wildcard(80)); return err },
		"Connect": func() error { _, err := p.Connect(lab.TCP, netip.MustParseAddrPort("1.2.3.4:5")); return err },
		"Run":     func() error { _, err := p.Run(t.Context(), "true"); return err },
		"Pod":     func() error { _, err := n.Pod("q", netip.MustParseAddr("10.244.1.6")); return err },
		"Host":    func() error { _, err := l.Host("h", netip.MustParsePrefix("192.168.100.9/24")); return err },
	} {
		if err := do(); !errors.Is(err, lab.ErrClosed) {
			t.Errorf("%s after Close: %v, want %v", name, err, lab.ErrClosed)
		}
	}
	if fd := p.FD(); fd != -1 {
		t.Errorf("FD is %d after Close, want -1", fd)
	}
	if err := p.Delete(); err != nil {
		t.Errorf("Delete after Close: %v", err)
	}
}
