// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// ports has the first of some ports of one server be the endpoints of a Service.
func ports(s *desired.State, n int) {
	s.SetService(dataplanetest.Service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.1"}}))
	for i := range 100 {
		if i >= n {
			s.DeleteEndpointSlice("default", dataplanetest.SliceName(i))
			continue
		}
		s.SetEndpointSlice(dataplanetest.Slice(i))
	}
}

// TestNothingFailsMeanwhile makes connections all the time while the backend
// programs: a pool that grows and shrinks across the sizes that have chains of their own,
// other Services in the tree, and full restores. No connection may fail.
func TestNothingFailsMeanwhile(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		const most = 20
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		street := dataplanetest.NewStreet(t, most)
		b, err := New(t.Context(), dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{Variant: v})
		must(err)
		defer b.Close()
		state := desired.New(desired.Config{NodeName: "n1"})
		ports(state, most)
		dataplanetest.Reconcile(t, b, state)
		var loads []*lab.Load
		for _, to := range []string{"10.96.0.1:80", "192.0.2.1:80"} {
			load, err := street.Client.StartLoad(t.Context(), lab.TCP, netip.MustParseAddrPort(to), lab.LoadOptions{Workers: 2})
			must(err)
			loads = append(loads, load)
		}
		const enough = 200 // connections, and at least so many rounds:
		for round := 0; round < 40 || loads[0].Stats().OK < enough && round < 1000; round++ {
			ports(state, 1+(round*7)%(most-1))
			web(state, 2+round%16, dataplanetest.Hosts(1+round%3)...)
			dataplanetest.Apply(t, b, state)
			ports(state, most)
			dataplanetest.Apply(t, b, state)
			switch round % 4 {
			case 0:
				dataplanetest.Reconcile(t, b, state)
			case 1:
				b.config.MasqueradeBit ^= 1
				dataplanetest.Reconcile(t, b, state)
			}
		}
		for _, load := range loads {
			if stats := load.Stop(); stats.Failed > 0 || stats.OK < enough/2 {
				t.Errorf("connections meanwhile: %v, first failure: %v", stats, stats.First)
			}
		}
	})
}

// TestHandOver cleans up while another proxy serves the Service too.
func TestHandOver(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		kerneltest.Require(t, kerneltest.NFTBinary)
		street := dataplanetest.NewStreet(t, 5)
		b, err := New(t.Context(), dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{Variant: v})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		state := desired.New(desired.Config{NodeName: "n1"})
		ports(state, 5)
		dataplanetest.Reconcile(t, b, state)
		dataplanetest.HandOver(t, street, b, state, 20)
	})
}

// TestRejected counts rejected packets in each variant.
func TestRejected(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		street := dataplanetest.NewStreet(t, 1)
		b, err := New(t.Context(), dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{Variant: v})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		dataplanetest.Rejected(t, street, b, func() (dataplane.Rejected, error) {
			c, err := b.PacketCounts()
			return c.Rejected, err
		}, func(state *desired.State) {
			b.config.MasqueradeBit ^= 1
			dataplanetest.Reconcile(t, b, state)
		})
	})
}

// TestNodePortTakeOver takes over the NodePorts, the rules and the sets of earlier versions.
func TestNodePortTakeOver(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		street := dataplanetest.NewStreet(t, 1)
		run := func(line string) string { return dataplanetest.RunIn(t, street.Node.Namespace, "", "sh", "-c", line) }
		dataplanetest.NodePortTakeOver(t, street, true, func() dataplanetest.Backend {
			b, err := New(t.Context(), dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{Variant: v})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			return b
		}, func() {
			for f, command := range map[desired.Family]string{desired.IPv4: "iptables-" + string(v), desired.IPv6: "ip6tables-" + string(v)} {
				run(fmt.Sprintf("ipset save %[1]s | sed 's/-EXTERNAL-IPS/-EXTERNAL/' | ipset restore; ipset flush %[1]s", setName(f, setExternal)))
				run(fmt.Sprintf("%s-save | sed '/NODE-/d; /TREE-NODE/d; /TREE-REFUSED/d; s/-EXTERNAL-IPS/-EXTERNAL/' | %[1]s-restore", command))
			}
		})
		if sets := strings.Fields(run("ipset list -n")); slices.Contains(sets, formerSet(desired.IPv4)) || slices.Contains(sets, formerSet(desired.IPv6)) {
			t.Errorf("sets: %v", sets)
		}
	})
}
