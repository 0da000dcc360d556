// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// walk runs a packet's way through the rules of a table as the kernel has them, and notes its look-ups.
type walk struct {
	t        *testing.T
	rules    map[string][]nfnl.RuleInfo
	sets     map[string][]nfnl.Element
	interval map[string]bool
	protocol byte
	source   netip.Addr
	network  []byte // header
	port     uint16
	regs     [4 * 16]byte

	lookups []string
	end     string // how it ended: "nat", "drop", or "" if no rule has ended it
}

func newWalk(t *testing.T, conn *nfnl.Conn, s *schema) *walk {
	w := &walk{t: t, rules: map[string][]nfnl.RuleInfo{}, sets: map[string][]nfnl.Element{}, interval: map[string]bool{}}
	all, err := conn.Contents(s.table)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all.Rules {
		w.rules[r.Chain] = append(w.rules[r.Chain], r)
	}
	for _, set := range s.sets() {
		w.interval[set.Name] = set.Flags&unix.NFT_SET_INTERVAL != 0
		if err := conn.Elements(s.table, set.Name, func(e nfnl.Element) {
			e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value)
			w.sets[set.Name] = append(w.sets[set.Name], e)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// to sends a packet from the source, or from outside, and returns the sets that it was looked up in and how it ended.
func (w *walk) to(s *schema, protocol byte, dst string) (lookups []string, end string) {
	to := netip.MustParseAddrPort(dst)
	w.network = make([]byte, 40)
	copy(w.network[s.daddr:], to.Addr().AsSlice())
	copy(w.network[s.saddr:], w.source.AsSlice())
	w.protocol, w.port, w.lookups, w.end, w.regs = protocol, to.Port(), nil, "", [64]byte{}
	w.chain(chainServices)
	return w.lookups, w.end
}

// at is where a register is.
func (w *walk) at(data []byte, attr uint16) int {
	if n := int(nfnl.Num(data, attr)); n >= unix.NFT_REG32_00 {
		return 4 * (n - unix.NFT_REG32_00)
	} else {
		return 16 * (n - 1) // negative for the verdict
	}
}

// store fills registers up.
func (w *walk) store(at int, value []byte) {
	copy(w.regs[at:], append(slices.Clone(value), make([]byte, -len(value)&3)...))
}

// chain reports whether the packet's way has ended.
func (w *walk) chain(name string) bool {
	for _, r := range w.rules[name] {
		switch verdict, chain := w.rule(r); verdict {
		case unix.NFT_JUMP:
			if w.chain(chain) {
				return true
			}
		case unix.NFT_GOTO:
			return w.chain(chain)
		case unix.NFT_RETURN:
			return false
		case nfDrop:
			w.end = "drop"
			return true
		case nfAccept:
			w.end = "nat"
			return true
		}
	}
	return false
}

const nfDrop, nfAccept = 0, 1

func (w *walk) rule(r nfnl.RuleInfo) (verdict int32, chain string) {
	for _, e := range nfnl.Attributes(r.Expressions) {
		data := nfnl.Attr(e, unix.NFTA_EXPR_DATA)
		value := func(attr uint16) []byte { return nfnl.Attr(nfnl.Attr(data, attr), unix.NFTA_DATA_VALUE) }
		switch name := nfnl.Text(e, unix.NFTA_EXPR_NAME); name {
		case "payload":
			from, n := int(nfnl.Num(data, unix.NFTA_PAYLOAD_OFFSET)), int(nfnl.Num(data, unix.NFTA_PAYLOAD_LEN))
			header := w.network
			if nfnl.Num(data, unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
				header = []byte{0, 0, byte(w.port >> 8), byte(w.port)}
			}
			w.store(w.at(data, unix.NFTA_PAYLOAD_DREG), header[from:min(from+n, len(header))])
		case "meta":
			if nfnl.Attr(data, unix.NFTA_META_DREG) != nil {
				w.store(w.at(data, unix.NFTA_META_DREG), map[uint32][]byte{unix.NFT_META_L4PROTO: {w.protocol, 0, 0, 0}, unix.NFT_META_MARK: {0xee, 0xee, 0xee, 0xee}}[nfnl.Num(data, unix.NFTA_META_KEY)])
			}
		case "bitwise":
			f := slices.Clone(w.regs[w.at(data, unix.NFTA_BITWISE_SREG):])
			mask, xor := value(unix.NFTA_BITWISE_MASK), value(unix.NFTA_BITWISE_XOR)
			for i := range mask {
				f[i] = f[i]&mask[i] ^ xor[i]
			}
			w.store(w.at(data, unix.NFTA_BITWISE_DREG), f[:len(mask)])
		case "cmp":
			want := value(unix.NFTA_CMP_DATA)
			if equal := bytes.HasPrefix(w.regs[w.at(data, unix.NFTA_CMP_SREG):], want); equal != (nfnl.Num(data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ) {
				return unix.NFT_CONTINUE, ""
			}
		case "numgen":
			w.store(w.at(data, unix.NFTA_NG_DREG), make([]byte, 4))
		case "fib":
			w.store(w.at(data, unix.NFTA_FIB_DREG), make([]byte, 4))
		case "immediate":
			if v := nfnl.Attr(nfnl.Attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT); v != nil {
				return int32(nfnl.Num(v, unix.NFTA_VERDICT_CODE)), nfnl.Text(v, unix.NFTA_VERDICT_CHAIN)
			}
			w.store(w.at(data, unix.NFTA_IMMEDIATE_DREG), value(unix.NFTA_IMMEDIATE_DATA))
		case "lookup":
			set := nfnl.Text(data, unix.NFTA_LOOKUP_SET)
			w.lookups = append(w.lookups, set)
			found := w.find(set, w.regs[w.at(data, unix.NFTA_LOOKUP_SREG):])
			switch to := nfnl.Attr(data, unix.NFTA_LOOKUP_DREG); {
			case found == nil:
				return unix.NFT_CONTINUE, ""
			case found.Chain != "":
				return int32(found.Verdict), found.Chain
			case to != nil:
				w.store(w.at(data, unix.NFTA_LOOKUP_DREG), found.Value)
			}
		case "nat":
			return nfAccept, ""
		case "counter", "objref", "dynset":
		default:
			w.t.Fatalf("chain %s has the expression %s", r.Chain, name)
		}
	}
	return unix.NFT_CONTINUE, ""
}

func (w *walk) find(set string, regs []byte) (found *nfnl.Element) {
	for i := range w.sets[set] {
		e := &w.sets[set][i]
		key := regs[:len(e.Key)]
		switch order := bytes.Compare(e.Key, key); {
		case !w.interval[set] && order == 0:
			return e
		case w.interval[set] && order <= 0 && (found == nil || bytes.Compare(e.Key, found.Key) > 0 || bytes.Equal(e.Key, found.Key) && found.End):
			found = e
		}
	}
	if found != nil && found.End {
		return nil
	}
	return found
}

// TestLookups counts look-ups: a new connection to a port takes none more with ranges, and one through a range at a
// ClusterIP takes one more than one to a port, also beside the Service's own ports. A port that a look-up misses, as
// during a commit, is not the range's before the second try.
func TestLookups(t *testing.T) {
	service := func(k *kernel, ranges string, ports int, local corev1.ServiceInternalTrafficPolicy) map[desired.Family]*walk {
		config := inCluster("10.244.0.0/16", "fd00:244::/32")
		config.NodeName = "n1"
		s := desired.New(config)
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media", Annotations: map[string]string{desired.AnnotationPortRanges: ranges}},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.10", "fd00:96::10"}, ExternalIPs: []string{"198.51.100.10", "2001:db8:51::10"}, InternalTrafficPolicy: &local},
		}
		for i := range int32(ports) {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 5060 + 2*i, Protocol: corev1.ProtocolUDP})
		}
		s.SetService(svc)
		for kind, ip := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.244.9.9", discoveryv1.AddressTypeIPv6: "fd00:244::9"} {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "media" + string(kind), Labels: map[string]string{discoveryv1.LabelServiceName: "media"}},
				AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: &config.NodeName}},
			}
			for _, p := range svc.Spec.Ports {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
			}
			s.SetEndpointSlice(slice)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.has(s)
		all := map[desired.Family]*walk{}
		for f := range schemas {
			all[desired.Family(f)] = newWalk(t, k.conn, k.schemas[f])
		}
		return all
	}
	addresses := map[desired.Family]string{desired.IPv4: "10.96.0.10", desired.IPv6: "[fd00:96::10]"}
	for _, c := range []struct {
		ports int
		local corev1.ServiceInternalTrafficPolicy
		other int // look-ups more to a port, because of the range
		more  int // to the range; -1 for those of both tries
	}{
		{1, corev1.ServiceInternalTrafficPolicyCluster, 0, 1},
		{8, corev1.ServiceInternalTrafficPolicyCluster, 0, 1},
		{9, corev1.ServiceInternalTrafficPolicyCluster, 0, -1},
		{2, corev1.ServiceInternalTrafficPolicyLocal, 1, 1},
	} {
		k := newKernel(t)
		plain := service(k, "", c.ports, c.local)
		with := service(k, "udp/5000-6000", c.ports, c.local)
		for f, ip := range addresses {
			s := &rangedSchemas[f]
			before, end := plain[f].to(s, unix.IPPROTO_UDP, ip+":5060")
			port, end2 := with[f].to(s, unix.IPPROTO_UDP, ip+":5060")
			if end != "nat" || end2 != "nat" || len(port)-len(before) != c.other {
				t.Errorf("%+v: to a port: %s (%s), with a range: %s (%s)", c, before, end, port, end2)
			}
			for _, to := range []string{"5000", "5059", "5061", "6000"} {
				got, end := with[f].to(s, unix.IPPROTO_UDP, ip+":"+to)
				if more := len(got) - len(port); end != "nat" || c.more >= 0 && more != c.more || c.more < 0 && !slices.Contains(got, "local-frontends") {
					t.Errorf("%+v: to port %s of the range: %d look-ups, %s: %s", c, to, len(got), end, got)
				}
			}
			for _, to := range []string{"4999", "6001"} {
				if _, end := with[f].to(s, unix.IPPROTO_UDP, ip+":"+to); end != "" {
					t.Errorf("%+v: to port %s beside the range: %q", c, to, end)
				}
			}
			w := with[f] // the port's element is being replaced
			for _, set := range []string{"frontends", "local-frontends"} {
				w.sets[set] = slices.DeleteFunc(w.sets[set], func(e nfnl.Element) bool { return strings.HasSuffix(string(e.Key), "\x13\xc4\x00\x00") })
			}
			if got, _ := w.to(s, unix.IPPROTO_UDP, ip+":5060"); !slices.Equal(got[2:8], []string{"frontends", "ranges", "frontends", "local-frontends", "ranges", "local-frontends"}) {
				t.Errorf("%+v: to a port that look-ups miss: %s", c, got)
			}
		}
	}
}

// TestExternalLookups counts look-ups at a load balancer's address: a new connection through a range takes at most one more
// than one to a port there, and three more if both source ranges and externalTrafficPolicy Local apply. Beside another
// Service's ports in the range it is the same, and a port that both tries of external ports miss only is the range's.
func TestExternalLookups(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.ServiceExternalTrafficPolicy
		sources []string
		more    map[string]int // by client
	}{
		{"Cluster", nil, map[string]int{"outside": 0, "pod": 0}},
		{"Local", nil, map[string]int{"outside": 1, "pod": 1}},
		{"Cluster", []string{"10.0.0.0/8", "192.168.0.0/16", "fd00::/16"}, map[string]int{"outside": 1, "pod": 1, "excluded": -1}},
		{"Local", []string{"10.0.0.0/8", "192.168.0.0/16", "fd00::/16"}, map[string]int{"outside": 3, "pod": 3, "excluded": -1}},
	} {
		k := newKernel(t)
		config := inCluster("10.244.0.0/16", "fd00:244::/32")
		config.NodeName = "n1"
		s := desired.New(config)
		ingress := []corev1.LoadBalancerIngress{{IP: "198.51.100.10"}, {IP: "2001:db8:51::10"}}
		for name, port := range map[string]int32{"media": 5060, "other": 5062} {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{fmt.Sprint("10.96.1.", port%256), fmt.Sprintf("fd00:96::%d", port)},
					ExternalTrafficPolicy: c.policy, LoadBalancerSourceRanges: c.sources, Ports: []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolUDP}},
				},
				Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
			}
			if name == "media" {
				svc.Annotations = map[string]string{desired.AnnotationPortRanges: "udp/5000-6000"}
				svc.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)) // younger, so that the other one's port wins
			}
			s.SetService(svc)
			for kind, ip := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.244.9.9", discoveryv1.AddressTypeIPv6: "fd00:244::9"} {
				s.SetEndpointSlice(&discoveryv1.EndpointSlice{
					ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name + string(kind), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
					AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: &config.NodeName}},
					Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: new(corev1.ProtocolUDP)}},
				})
			}
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
		k.has(s)
		for f := range schemas {
			w, r := newWalk(t, k.conn, k.schemas[f]), k.schemas[f]
			ip := []string{"198.51.100.10", "[2001:db8:51::10]"}[f]
			for client, more := range c.more {
				w.source = netip.MustParseAddr(map[string][]string{"outside": {"192.168.7.7", "fd00:7::7"}, "pod": {"10.244.7.7", "fd00:244::7"}, "excluded": {"203.0.113.7", "2001:db8:7::7"}}[client][f])
				port, end := w.to(r, unix.IPPROTO_UDP, ip+":5060")
				for _, to := range []string{"5000", "5061", "5063", "6000"} {
					got, end2 := w.to(r, unix.IPPROTO_UDP, ip+":"+to)
					if end2 != end || (end == "nat") != (more >= 0) || end == "nat" && len(got)-len(port) != more {
						t.Errorf("%s %v, client %s: %d look-ups to a port, %q; %d to port %s of the range, %q: %s", c.policy, c.sources, client, len(port), end, len(got), to, end2, got)
					}
				}
			}
			if got, end := w.to(r, unix.IPPROTO_UDP, []string{"203.0.113.99:53", "[2001:db8:99::1]:53"}[f]); len(got) != 12 || end != "" {
				t.Errorf("%d look-ups to no Service, %q: %s", len(got), end, got)
			}
			// The element of another Service's port is being replaced.
			external := w.sets["external"]
			w.source = netip.MustParseAddr([]string{"192.168.7.7", "fd00:7::7"}[f])
			port, _ := w.to(r, unix.IPPROTO_UDP, ip+":5062")
			w.sets["external"] = slices.DeleteFunc(slices.Clone(external), func(e nfnl.Element) bool { return strings.HasSuffix(string(e.Key), "\x13\xc6\x00\x00") })
			missed, _ := w.to(r, unix.IPPROTO_UDP, ip+":5062")
			if slices.Contains(port, "ranges") || !slices.Equal(missed[:5], []string{"external", "cluster-ips", "node-addresses", "external", "ranges"}) {
				t.Errorf("%s: to another Service's port: %s; if look-ups miss it: %s", c.policy, port, missed)
			}
		}
	}
}
