// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// kubeProxy is what kube-proxy's IPVS mode has for the street's Service, with two of its three
// endpoints, for another Service that no longer exists, and for another program.
const kubeProxy = `
sysctl -qw net.ipv4.vs.conntrack=1 || echo 1 > /proc/sys/net/ipv4/vs/conntrack
ip link add kube-ipvs0 type dummy
ip addr add 10.96.0.1/32 dev kube-ipvs0
ip addr add 10.96.0.9/32 dev kube-ipvs0
ipvsadm -A -t 10.96.0.1:80 -s rr
ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.3:8000 -m -w 1
ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.3:8001 -m -w 1
ipvsadm -A -t 10.96.0.9:80 -s rr
ipvsadm -A -t 198.51.100.1:80 -s rr`

// alive fails the test unless the stream receives another echo, and none has failed.
func alive(t *testing.T, stream *lab.Stream) {
	t.Helper()
	before := stream.Stats().Received
	for end := time.Now().Add(20 * time.Second); stream.Stats().Received <= before+1 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if stats := stream.Stats(); stats.Failed > 0 || stats.Ended || stats.Received <= before+1 {
		t.Errorf("the open connection: %+v", stats)
	}
}

// TestAdopt takes over from kube-proxy while a connection is open. Its virtual server and
// destinations stay, with their counters; what no Service has goes, except what is excluded.
func TestAdopt(t *testing.T) {
	s := newStreet(t, 3, Options{Exclude: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, kubeProxy)
	stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	conn := s.busy()
	dataplanetest.Reconcile(t, s.backend, s.state)
	dataplanetest.Has(t, s.backend, s.state)
	alive(t, stream)
	if all := s.destinations(); len(all) != 3 || all[conn].Active != 1 {
		t.Errorf("destinations: %+v", all)
	}
	// The kernel adds up counters every two seconds. A new virtual server would not count the
	// connection.
	var out []byte
	counted := func() bool {
		if out, err = s.Node.Run(t.Context(), "sh", "-c", "ipvsadm -Ln --stats; ip addr show kube-ipvs0"); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); len(words) > 2 && words[1] == web.String() && words[2] == "1" {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(30 * time.Second); !counted() && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	if !counted() || !strings.Contains(string(out), "198.51.100.1:80") || strings.Contains(string(out), "10.96.0.9") {
		t.Errorf("after the take-over:\n%s", out)
	}
}

// TestDrainsAfterRestart: a destination that drains when the proxy restarts goes on draining.
func TestDrainsAfterRestart(t *testing.T) {
	s := newStreet(t, 3, Options{})
	stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	conn := s.busy()
	s.remove(conn)
	s.backend = open(t, s.Node.Namespace, Options{})
	dataplanetest.Reconcile(t, s.backend, s.state)
	if d, exists := s.destinations()[conn]; !exists || d.Weight != 0 {
		t.Errorf("the destination that drains: %+v", d)
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	alive(t, stream)
	s.expire()
	if _, exists := s.destinations()[conn]; exists {
		t.Error("the destination is there after its time")
	}
}

// TestAdoptWritesNothing: virtual servers and destinations as kube-proxy v1.37.1 makes them, in
// pkg/proxy/ipvs/proxier.go, stay as they are, with each scheduler, both families, and session
// affinity. Only sh and mh get their fallback, which leaves their tables of endpoints alone.
func TestAdoptWritesNothing(t *testing.T) {
	ns := newNamespace(t)
	b := open(t, ns, Options{})
	if _, err := b.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, scheduler := range b.schedulers {
		t.Run(scheduler, func(t *testing.T) {
			b := open(t, ns, Options{Scheduler: scheduler})
			state := desired.New(desired.Config{NodeName: "n1", IPVS: true})
			state.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
				Spec: corev1.ServiceSpec{
					ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, Ports: []corev1.ServicePort{{Port: 80}},
				},
			})
			state.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sticky"},
				Spec: corev1.ServiceSpec{
					ClusterIPs: []string{"10.96.0.2", "fd00:96::2"}, Ports: []corev1.ServicePort{{Port: 80}},
					SessionAffinity:       corev1.ServiceAffinityClientIP,
					SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(600))}},
				},
			})
			const persistent, sourceHash = 0x1, 0x10 // pkg/proxy/ipvs/util
			var requests []ipvs.Request
			for number, service := range []string{1: "web", 2: "sticky"} {
				for _, ipv6 := range []bool{false, true} {
					slice := dataplanetest.Slice(0)
					slice.Name, slice.Labels[discoveryv1.LabelServiceName] = fmt.Sprint(service, ipv6), service
					key := ipvs.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}), Port: 80, Protocol: 6}
					slice.Endpoints[0].Addresses = []string{"10.244.1.3"}
					if ipv6 {
						key.Addr = netip.MustParseAddr(fmt.Sprint("fd00:96::", number))
						slice.AddressType, slice.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6, []string{"fd00:244::3"}
					}
					if service == "" {
						continue
					}
					state.SetEndpointSlice(slice)
					v := ipvs.Service{Key: key, Scheduler: scheduler, MaskBits: uint8(key.Addr.BitLen())}
					if service == "sticky" {
						v.Flags, v.Timeout = persistent, 600
					}
					if scheduler == "mh" {
						v.Flags |= sourceHash
					}
					to := netip.AddrPortFrom(netip.MustParseAddr(slice.Endpoints[0].Addresses[0]), dataplanetest.FirstPort)
					requests = append(requests, ipvs.DeleteService(key), ipvs.AddService(v),
						ipvs.AddDestination(key, ipvs.Destination{AddrPort: to, Weight: 1}))
				}
			}
			err := b.conn.Execute(t.Context(), requests, func(i int, err error) {
				if i%3 > 0 {
					t.Fatal(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			p := plan{drain: b.drain}
			b.servers.write(&p, &state.Full().Change)
			if err := b.compare(t.Context(), &p); err != nil {
				t.Fatal(err)
			}
			want := 0
			if scheduler == "sh" || scheduler == "mh" {
				want = 4 // one for each virtual server
			}
			if len(p.first) != want || len(p.last) > 0 {
				t.Errorf("%d steps before the table changes and %d after it", len(p.first), len(p.last))
			}
			dataplanetest.Reconcile(t, b, state)
			dataplanetest.Has(t, b, state)
		})
	}
}
