// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestConnectionsOutliveTheirEndpoint: a connection goes on more than 15 minutes after its endpoint
// has left the Service, as it does with kube-proxy.
func TestConnectionsOutliveTheirEndpoint(t *testing.T) {
	s := newStreet(t, 2, Options{})
	stream, err := s.Client.Stream(lab.TCP, web, 20*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	s.remove(s.busy())
	if err := s.backend.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive(t, stream)
}

// TestLostServer: one check finds that a virtual server or one of its destinations is gone, whichever it is. A virtual server
// is back then, also if it was not time to list all.
func TestLostServer(t *testing.T) {
	for _, what := range []string{"virtual server", "destination"} {
		s := newStreet(t, 1, Options{})
		if out, err := s.Node.Run(t.Context(), "ipvsadm", "-A", "-t", "192.0.2.99:443"); err != nil { // another program's
			t.Fatalf("%v: %s", err, out)
		}
		for i := range 40 {
			s.other(fmt.Sprint("other-", i), fmt.Sprint("10.96.1.", i+1), "10.244.1.3", "10.244.1.4", "10.244.1.5")
		}
		s.program(false)
		// The one that the next check would look at last.
		last := s.backend.servers.pools[s.backend.nextSample]
		for last == nil || len(last.Frontends) == 0 || len(last.Slots) < 3 {
			s.backend.nextSample++
			last = s.backend.servers.pools[s.backend.nextSample]
		}
		key := keyOf(last.Frontends[0].FrontendKey)
		request := ipvs.DeleteService(key)
		if what == "destination" {
			request = ipvs.DeleteDestination(key, addrPort(last.Slots[1]))
		} else {
			if err := s.backend.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.backend.listing = time.Hour
		}
		err := s.backend.conn.Execute(t.Context(), []ipvs.Request{request}, func(_ int, err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		if err := s.backend.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) || !strings.Contains(err.Error(), what) {
			t.Errorf("a lost %s: Check: %v", what, err)
		}
		if what == "destination" {
			continue
		}
		all, err := s.backend.conn.Destinations(t.Context(), key)
		if servers, failed := s.backend.byAddress(t.Context()); len(all) != 3 || err != nil || failed != nil || servers[key] != s.backend.servers.service(last.Frontends[0]) {
			t.Errorf("virtual server %v, destinations %v, errors %v, %v", servers[key], all, err, failed)
		}
		if err := s.backend.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestForeignServers: a virtual server with direct routing is no proxy's, and stays.
func TestForeignServers(t *testing.T) {
	s := newStreet(t, 1, Options{}, "ipvsadm -A -t 192.0.2.99:443 -s rr\nipvsadm -a -t 192.0.2.99:443 -r 192.168.100.12 -g")
	dataplanetest.Reconcile(t, s.backend, s.state)
	all, err := s.backend.byAddress(t.Context())
	if _, has := all[ipvs.Key{Addr: netip.MustParseAddr("192.0.2.99"), Port: 443, Protocol: uint8(desired.TCP)}]; err != nil || !has {
		t.Errorf("virtual servers %v, error %v", all, err)
	}
}

// TestForeignServerOfExternalIP: another program's virtual server at an external IP that the table serves is no
// damage.
func TestForeignServerOfExternalIP(t *testing.T) {
	s := newStreet(t, 1, Options{}, "ipvsadm -A -t 198.51.100.1:80 -s wlc -p 300\nipvsadm -a -t 198.51.100.1:80 -r 192.168.100.12 -g")
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{ExternalIPs: []string{"198.51.100.1"}}))
	dataplanetest.Reconcile(t, s.backend, s.state)
	dataplanetest.Has(t, s.backend, s.state)
	const theirs = "198.51.100.1:80"
	if out, err := s.Node.Run(t.Context(), "sh", "-ec", "ipvsadm -Ln"); err != nil || !strings.Contains(string(out), theirs) {
		t.Errorf("error %v, no %s in\n%s", err, theirs, out)
	}
	// Without direct routing it is a Service proxy's.
	if out, err := s.Node.Run(t.Context(), "sh", "-ec", "ipvsadm -e -t "+theirs+" -r 192.168.100.12 -m"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if v, err := dataplane.Look(t.Context(), s.backend, s.state.Reported()); err != nil || len(v.Differences) == 0 {
		t.Errorf("verification finds nothing (%v)", err)
	}
	dataplanetest.Reconcile(t, s.backend, s.state)
	dataplanetest.Has(t, s.backend, s.state)
}

// TestWeightsWithoutEffect: with a scheduler that does not look at weights, a Service that has
// some has a Problem, or its weights an effect.
func TestWeightsWithoutEffect(t *testing.T) {
	s := newStreet(t, 2, Options{})
	for i, weight := range []string{"100", "10"} {
		slice := dataplanetest.Slice(i)
		slice.Annotations = map[string]string{desired.AnnotationWeight: weight}
		s.state.SetEndpointSlice(slice)
	}
	c := s.state.Change()
	stats, err := s.backend.Apply(t.Context(), &c.Change)
	if err != nil {
		t.Fatal(err)
	}
	if hits := s.hits(22); len(c.Problems)+len(stats.Refused) == 0 && (hits[dataplanetest.FirstPort] < 19 || hits[dataplanetest.FirstPort] > 21) {
		t.Errorf("weights 100 and 10: connections %v, and no Problem", hits)
	}
}

// TestChangedParameter: a parameter that another program changes is put back, and the virtual
// servers are not compared for it.
func TestChangedParameter(t *testing.T) {
	s := newStreet(t, 1, Options{StrictARP: true})
	const parameter = "ipv4/conf/all/arp_ignore"
	if err := s.Node.SetSysctl(parameter, "2"); err != nil {
		t.Fatal(err)
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if is, err := s.Node.Sysctl(parameter); err != nil || is != "1" {
		t.Errorf("%s is %s, error %v", parameter, is, err)
	}
}

// TestTimeoutsAreRestored: cleanup puts back IPVS's timeouts.
func TestTimeoutsAreRestored(t *testing.T) {
	s := newStreet(t, 1, Options{Timeouts: ipvs.Timeouts{UDP: 77}}, "true")
	before, err := s.backend.conn.Timeouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{}))
	dataplanetest.Reconcile(t, s.backend, s.state)
	if err := s.backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := s.backend.conn.Timeouts(t.Context()); err != nil || after != before {
		t.Errorf("timeouts %+v, error %v; before %+v", after, err, before)
	}
}

// TestDisown: after Disown, the interface is not Slipstream's, and its parameters can still be put back.
func TestDisown(t *testing.T) {
	s := newStreet(t, 1, Options{StrictARP: true})
	const parameter = "ipv4/conf/all/arp_ignore"
	owned := func() (is bool) {
		t.Helper()
		if err := s.Node.Do(func() (err error) { is, err = Owned(); return err }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if !owned() {
		t.Error("not owned at first")
	}
	if err := s.Node.Do(Disown); err != nil {
		t.Fatal(err)
	}
	if owned() {
		t.Error("still owned")
	}
	if err := s.Node.Do(RestoreParameters); err != nil {
		t.Fatal(err)
	}
	if is, err := s.Node.Sysctl(parameter); err != nil || is != "0" {
		t.Errorf("%s is %s, error %v", parameter, is, err)
	}
}
