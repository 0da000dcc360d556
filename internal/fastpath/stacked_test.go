// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What these tests need of the kernel: VLAN interfaces (CONFIG_VLAN_8021Q), bonds of interfaces (CONFIG_BONDING), and IPv4
// tunnels of the driver sit, in its mode ipip (CONFIG_IPV6_SIT).
var (
	vlans = withLink("VLANs", func(parent int) netlink.Link {
		return &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "probe", ParentIndex: parent}, VlanId: 5}
	})
	bonds = withLink("bonds", func(int) netlink.Link { return netlink.NewLinkBond(netlink.LinkAttrs{Name: "probe"}) })
	ipip  = withLink("IPv4 tunnels", func(int) netlink.Link {
		return &netlink.Sittun{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Local: net.IPv4(192, 0, 2, 1), Proto: unix.IPPROTO_IPIP}
	})
)

// withLink is the feature of an interface that can be added. make is given the index of one that a VLAN can be on.
func withLink(name string, make func(parent int) netlink.Link) kerneltest.Feature {
	return kerneltest.Define(name, func() error {
		ns, err := lab.NewNamespace()
		if err != nil {
			return err
		}
		defer ns.Close()
		parent := netlink.NewVeth(netlink.LinkAttrs{Name: "parent"})
		parent.PeerName = "peer"
		if err := ns.Netlink().LinkAdd(parent); err != nil {
			return err
		}
		l, err := ns.Netlink().LinkByName("parent")
		if err != nil {
			return err
		}
		return ns.Netlink().LinkAdd(make(l.Attrs().Index))
	}, kerneltest.NetNS)
}

// underlay is a second network between the world's node and another one, over which the
// nodes route their pods' traffic.
type underlay struct {
	*world
	over string // the interface
	n2   *lab.Node
	far  *lab.Pod // on n2; serves the Service web
}

// newUnderlay connects the two nodes by the veth pairs a0 and b0 and runs the script on
// both. Then it routes their pods' traffic over an interface, unless the script did that.
// While that interface is down, the pods are unreachable.
func newUnderlay(t *testing.T, engine Engine, over, script string) *underlay {
	t.Helper()
	w := newQuietWorld(t, engine)
	u := &underlay{world: w, over: over, n2: w.newNode("n2", 12, 2)}
	u.far = w.newPod(u.n2, "far", 11)
	w.serve(u.far)
	for _, name := range []string{"a0", "b0"} {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		pair.PeerName, pair.PeerNamespace = name, netlink.NsFd(u.n2.FD())
		w.check(w.links.LinkAdd(pair))
	}
	u.onBoth(script + "\nfor pods in 10.244.$j.0/24 fd00:244:$j::/64; do ip route add unreachable $pods metric 4096; done")
	if over != "" {
		u.route()
	}
	w.endpoints(web, u.far)
	w.check2(w.proxy.Apply(t.Context(), &w.state.Change().Change))
	return u
}

// onBoth runs a script on both nodes. It is given the node's number and the other's, $i
// and $j.
func (u *underlay) onBoth(script string) {
	u.t.Helper()
	for i, n := range []*lab.Node{u.node, u.n2} {
		u.check2(n.Run(u.t.Context(), "sh", "-c", fmt.Sprintf("set -e; i=%d; j=%d\n", i+1, 2-i)+script))
	}
}

// route routes the pods' traffic over the interface.
func (u *underlay) route() {
	u.t.Helper()
	u.onBoth("over=" + u.over + `
		ip addr replace 10.255.0.$i/24 dev $over; ip addr replace fd00:255::$i/64 dev $over nodad
		ip link set $over up
		ip route replace 10.244.$j.0/24 via 10.255.0.$j dev $over
		ip route replace fd00:244:$j::/64 via fd00:255::$j dev $over`)
}

// carries returns new connections to the other node's pod, and fails the test unless they
// are offloaded in both directions. Families says for each whether it is IPv6.
func (u *underlay) carries(families ...bool) (all []*stream) {
	u.t.Helper()
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for _, ipv6 := range families {
			s := u.stream(p, web, ipv6)
			u.fast(s)
			u.noSlowPackets(s)
			if by := s.Stats().Server; by != "far" {
				u.t.Errorf("%v, IPv6 %t: %s answers", p, ipv6, by)
			}
			all = append(all, s)
		}
	}
	u.unharmed(all...)
	return all
}

func (u *underlay) setLinks(state string, links ...string) {
	u.t.Helper()
	for _, name := range links {
		u.check2(u.node.Run(u.t.Context(), "ip", "link", "set", name, state))
	}
}

// linkLost takes down links of the underlay until nothing gets through, and then has them
// back. The connections survive that, and so does the bystander, which does not notice.
func (u *underlay) linkLost(all []*stream, links ...string) {
	u.t.Helper()
	bystander := u.stream(lab.TCP, other, false)
	u.fast(bystander)
	u.setLinks("down", links...)
	for _, s := range all {
		u.until("nothing gets through", func() bool { return s.Stats().Failed > 0 })
	}
	u.goesOn(bystander)
	u.setLinks("up", links...)
	u.route()
	u.goesOn(all...)
	u.fast(all...)
	for _, s := range all {
		if n := s.Stats(); n.Ended || n.Moved > 0 {
			u.t.Errorf("%v was harmed: %+v", s.to, n)
		}
	}
	u.unharmed(bystander)
}

// deleted deletes an interface of the underlay. Its flows end, the interfaces named in
// left stay in the flowtable, and the bystander does not notice.
func (u *underlay) deleted(all []*stream, name, left string) {
	u.t.Helper()
	bystander := u.stream(lab.TCP, other, false)
	u.fast(bystander)
	u.check2(u.node.Run(u.t.Context(), "ip", "link", "del", name))
	for _, s := range all {
		u.until("no flow outlives its interface", func() bool { _, is := s.flow(); return !is })
	}
	u.has(left)
	u.goesOn(bystander)
	u.unharmed(bystander)
	u.check(u.Check(u.t.Context()))
	if s, err := u.Stats(); err != nil || s.Errors > 0 {
		u.t.Errorf("%+v, %v", s, err)
	}
}

// TestOtherRoute routes pods' traffic over another interface, first only from this node and then back too, and
// takes down the former one. While packets come back by another interface, nothing is cut off.
func TestOtherRoute(t *testing.T) { engines(t, testOtherRoute) }

func testOtherRoute(t *testing.T, engine Engine) {
	u := newUnderlay(t, engine, "a0", "")
	u.start(Config{Engine: engine, Threshold: threshold})
	u.has("a0 eth0 veth1 veth2 veth3")
	all := u.carries(false, true)
	const elsewhere = "ip route replace 10.244.$j.0/24 via 192.168.100.1$j; ip route replace fd00:244:$j::/64 via fd00:100::1$j"
	u.onBoth("[ $i = 2 ] || { " + elsewhere + "; }")
	for range 3 {
		u.goesOn(all...)
	}
	u.onBoth(elsewhere)
	u.until("no packets take the slow path", func() bool { // while only one node has its new route, they do
		u.watchSlowPath()
		u.goesOn(all...)
		original, reply := u.slowPackets()
		return original+reply == 0
	})
	u.setLinks("down", "a0")
	u.goesOn(all...)
	u.fast(all...)
	u.unharmed(all...)
}

const makeVLAN = `
	ip link set a0 up
	ip link add link a0 name a0.5 type vlan id 5`

// TestVLAN routes pods' traffic over a VLAN, with the interface below it in the flowtable,
// as by default, and without it.
func TestVLAN(t *testing.T) { engines(t, testVLAN, vlans) }

func testVLAN(t *testing.T, engine Engine) {
	for _, c := range []struct{ expression, devices, left string }{
		{"", "a0 a0.5 eth0 veth1 veth2 veth3", "a0 eth0 veth1 veth2 veth3"},
		{`interface.up && !(interface.name in ["a0", "lo"])`, "a0.5 eth0 veth1 veth2 veth3", "eth0 veth1 veth2 veth3"},
	} {
		t.Run(c.devices, func(t *testing.T) {
			selector, err := iface.Compile(c.expression)
			if err != nil {
				t.Fatal(err)
			}
			u := newUnderlay(t, engine, "a0.5", makeVLAN)
			u.start(Config{Engine: engine, Threshold: threshold, Interfaces: selector})
			u.has(c.devices)
			all := u.carries(false, true)
			u.linkLost(all, "a0")
			u.has(c.devices)
			u.deleted(all, "a0.5", c.left)
		})
	}
}

const makeBond = `
	ip link add bond0 type bond mode active-backup miimon 10
	ip link set a0 master bond0; ip link set b0 master bond0
	ip link set bond0 up; ip link set a0 up; ip link set b0 up`

// failover takes away the bond's active link. Connections go on over the other one, and
// stay offloaded.
func (u *underlay) failover(all []*stream) {
	u.t.Helper()
	active := func() (name string) {
		bond, err := u.links.LinkByName("bond0")
		u.check(err)
		if port, err := u.links.LinkByIndex(bond.(*netlink.Bond).ActiveSlave); err == nil {
			name = port.Attrs().Name
		}
		return name
	}
	before := active()
	u.setLinks("down", before)
	u.until("the bond uses its other link", func() bool { now := active(); return now != before && now != "" })
	u.goesOn(all...)
	u.fast(all...)
	u.noSlowPackets(all[0])
	u.setLinks("up", before)
	u.goesOn(all...)
	for _, s := range all {
		// What was under way on the lost link is lost.
		if n := s.Stats(); n.Ended || n.Moved > 0 || n.Failed > 2 {
			u.t.Errorf("%v was harmed: %+v", s.to, n)
		}
	}
}

// TestBond routes pods' traffic over a bond of two links. By default its links do not take
// part.
func TestBond(t *testing.T) { engines(t, testBond, bonds) }

func testBond(t *testing.T, engine Engine) {
	u := newUnderlay(t, engine, "bond0", makeBond)
	u.start(Config{Engine: engine, Threshold: threshold})
	u.has("bond0 eth0 veth1 veth2 veth3")
	all := u.carries(false, true)
	u.failover(all)
	u.linkLost(all, "a0", "b0")
	u.deleted(all, "bond0", "eth0 veth1 veth2 veth3")
}

// TestVLANOnBond routes pods' traffic over a VLAN on a bond.
func TestVLANOnBond(t *testing.T) { engines(t, testVLANOnBond, vlans, bonds) }

func testVLANOnBond(t *testing.T, engine Engine) {
	u := newUnderlay(t, engine, "bond0.5", makeBond+`
		ip link add link bond0 name bond0.5 type vlan id 5`)
	u.start(Config{Engine: engine, Threshold: threshold})
	u.has("bond0 bond0.5 eth0 veth1 veth2 veth3")
	all := u.carries(false, true)
	u.failover(all)
	u.linkLost(all, "a0", "b0")
	u.deleted(all, "bond0", "eth0 veth1 veth2 veth3")
}

// TestIPIP routes pods' traffic through an IPv4 tunnel: one with a remote address, and one
// whose routes name the remote, as Calico's tunl0. The driver is sit in its mode ipip,
// which sends and receives as the driver ipip does and which the test kernels have.
func TestIPIP(t *testing.T) { engines(t, testIPIP, ipip) }

func testIPIP(t *testing.T, engine Engine) {
	for name, remote := range map[string]string{"remote": "remote 192.168.100.1$j", "any": ""} {
		t.Run(name, func(t *testing.T) {
			u := newUnderlay(t, engine, "", "ip link add tun0 type sit mode ipip local 192.168.100.1$i "+remote+`
				ip link set tun0 up
				ip route replace 10.244.$j.0/24 via 192.168.100.1$j dev tun0 onlink`)
			u.start(Config{Engine: engine, Threshold: threshold})
			if engine == EBPF { // its packets have no Ethernet header
				u.has("eth0 veth1 veth2 veth3")
				u.stays(u.stream(lab.TCP, web, false))
				return
			}
			u.has("eth0 tun0 veth1 veth2 veth3")
			all := u.carries(false)
			u.deleted(all, "tun0", "eth0 veth1 veth2 veth3")
		})
	}
}
