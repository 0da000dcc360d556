// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/test/lab"
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
	for key, drains := range s.backend.drain {
		for to := range drains {
			drains[to] = time.Now().Add(-time.Second)
		}
		t.Logf("%s drains %d", key, len(drains))
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, exists := s.destinations()[conn]; exists {
		t.Error("the destination is there after its time")
	}
}
