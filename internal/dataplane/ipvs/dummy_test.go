// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
)

// TestAddressesWhileTheyChange lists the addresses of the interface while one of them comes and
// leaves, which interrupts the kernel's answer.
func TestAddressesWhileTheyChange(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	// Kernels that have no dummy interfaces have these.
	if out, err := ns.Run(t.Context(), "ip", "link", "add", Interface, "type", "veth"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	open := func() *dummy {
		d, err := openDummy(ns.FD())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.close() })
		if d.link, err = d.handle.LinkByName(Interface); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d, other := open(), open()
	refuse := func(_ netip.Addr, err error) { t.Error(err) }
	var all desired.SetChange
	for i := range 1000 {
		all.Added = append(all.Added, desired.Address(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})))
	}
	if err := d.change(t.Context(), &all, refuse); err != nil {
		t.Fatal(err)
	}
	// At most two changes for each list, so that it ends on any machine.
	comes := desired.SetChange{Added: []desired.Member{desired.Address(netip.MustParseAddr("10.97.0.1"))}}
	leaves := desired.SetChange{Removed: comes.Added}
	start, done := make(chan struct{}), make(chan error)
	go func() {
		for range start {
			time.Sleep(rand.N(time.Millisecond))
			done <- errors.Join(other.change(t.Context(), &comes, refuse), other.change(t.Context(), &leaves, refuse))
		}
	}()
	defer close(start)
	for range 200 {
		start <- struct{}{}
		got, err := d.addresses()
		if changed := <-done; changed != nil {
			t.Fatal(changed)
		}
		for _, a := range all.Added {
			if err == nil && !got[a.Addr] {
				t.Fatalf("%d addresses, without %s", len(got), a)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestVIP: an interface of the node gets the IP of a load balancer and an external IP, as with
// keepalived, and loses them. Both are served all the time, the external IP by IPVS while the
// node has it.
func TestVIP(t *testing.T) {
	s := newStreet(t, 2, Options{})
	external, loadBalancer := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	svc := dataplanetest.Service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{external.String()}})
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: loadBalancer.String()}}
	s.state.SetService(svc)
	s.apply()
	key := ipvs.Key{Addr: external, Port: web.Port(), Protocol: uint8(desired.TCP)}
	scheduled := uint32(0)
	for step, command := range []string{"", "add", "del"} {
		addrs := s.Node.Addrs()
		for _, a := range []netip.Addr{external, loadBalancer} {
			if step == 1 {
				addrs = append(addrs, a)
			}
			if step == 0 {
				continue
			}
			if out, err := s.Node.Run(t.Context(), "ip", "addr", command, a.String(), "dev", "lo"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		s.state.SetNodeAddresses(addrs)
		s.apply()
		if has, err := s.backend.dummy.addresses(); err != nil || has[external] || has[loadBalancer] != (step != 1) {
			t.Errorf("step %d: addresses of %s: %v, error %v", step, Interface, has, err)
		}
		for _, a := range []netip.Addr{external, loadBalancer} {
			if _, err := s.Client.Connect(lab.TCP, netip.AddrPortFrom(a, web.Port()), lab.Timeout(20*time.Second)); err != nil {
				t.Errorf("step %d: %s: %v", step, a, err)
			}
		}
		all, err := s.backend.conn.Destinations(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		n := uint32(0)
		for _, d := range all {
			n += d.Connections()
		}
		if (n > scheduled) != (step == 1) {
			t.Errorf("step %d: IPVS has %d connections to the external IP, and had %d", step, n, scheduled)
		}
		scheduled = n
	}
}

// TestLocalAtOnce: a new address is the node's when the change is done, though the kernel makes the route of an IPv6
// address in the background. Before, a connection would follow other routes. A route that another process has deleted
// comes back.
func TestLocalAtOnce(t *testing.T) {
	s := newStreet(t, 1, Options{})
	for i := range 300 {
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x98, 14: byte(i >> 8), 15: byte(i)})} {
			if err := s.backend.changeAddresses(t.Context(), &desired.SetChange{Added: []desired.Member{desired.Address(a)}}); err != nil {
				t.Fatal(err)
			}
			if !s.backend.dummy.isLocal(a) {
				t.Fatalf("%s is not local at once", a)
			}
		}
	}
	if out, err := s.Node.Run(t.Context(), "ip", "route", "del", "local", "10.96.0.1", "table", "local"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s.hits(1)
}

// TestOtherNode: another Node has the IP of a load balancer, as with k3s's ServiceLB. The Service's
// port is served, and another port reaches that Node.
func TestOtherNode(t *testing.T) {
	s := newStreet(t, 2, Options{})
	other, err := s.Lab.Host("other", netip.MustParsePrefix("192.168.100.12/24"))
	if err != nil {
		t.Fatal(err)
	}
	addr := other.Addrs()[0]
	if _, err := other.Serve(lab.TCP, netip.AddrPortFrom(addr, 6443)); err != nil {
		t.Fatal(err)
	}
	svc := dataplanetest.Service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer})
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr.String()}}
	s.state.SetService(svc)
	s.apply()
	node := &corev1.Node{}
	node.Name = "n2"
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr.String()}}
	for _, known := range []bool{false, true} {
		if known {
			s.state.SetNode(node)
			s.apply()
		}
		if err := s.backend.Check(t.Context()); err != nil {
			t.Error(err)
		}
		for _, from := range []*lab.Machine{&s.Node.Machine, &s.Client.Machine} {
			if _, err := from.Connect(lab.TCP, netip.AddrPortFrom(addr, web.Port()), lab.Timeout(20*time.Second)); err != nil {
				t.Errorf("known %t, from %s: %v", known, from.Name(), err)
			}
		}
		if _, err := s.Node.Connect(lab.TCP, netip.AddrPortFrom(addr, 6443), lab.Timeout(20*time.Second)); (err == nil) != known {
			t.Errorf("known %t, to the other Node: %v", known, err)
		}
	}
}

// TestIPv6SwitchedOff: where the node's interfaces must not have IPv6 addresses, both families
// are programmed, and only the setting of the dummy interface changes.
func TestIPv6SwitchedOff(t *testing.T) {
	ns := newNamespace(t)
	for _, scope := range []string{"all", "default"} {
		if err := ns.SetSysctl("ipv6/conf/"+scope+"/disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
	}
	s := desired.New(desired.Config{IPVS: true})
	s.SetService(dataplanetest.Service(corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}}))
	s.SetEndpointSlice(dataplanetest.Slice(0))
	b := open(t, ns, Options{})
	if missing, err := b.Probe(t.Context()); err != nil || len(missing) > 0 {
		t.Errorf("missing: %v, error %v", missing, err)
	}
	dataplanetest.Reconcile(t, b, s)
	dataplanetest.Has(t, b, s)
	if list, err := b.dummy.handle.AddrList(b.dummy.link, netlink.FAMILY_V6); err != nil || len(list) != 1 {
		t.Errorf("IPv6 addresses of %s: %v, error %v", Interface, list, err)
	}
	for _, scope := range []string{"all", "default", "lo"} {
		if is, err := ns.Sysctl("ipv6/conf/" + scope + "/disable_ipv6"); err != nil || is != "1" {
			t.Errorf("disable_ipv6 of %s is %s, error %v", scope, is, err)
		}
	}
}
