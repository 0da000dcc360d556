// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDeletionDumpsNothing deletes Services: the numbers of packets that were refused at their addresses are
// deleted, and no others, and the cost does not depend on how many those are.
func TestDeletionDumpsNothing(t *testing.T) {
	k, s := newKernel(t), desired.New(desired.Config{})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")})
	web(s, 0, 1)
	web(s, 1, 1)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "port"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.9.9", Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limited", Annotations: map[string]string{desired.AnnotationMaxConnections: "9"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.9.8", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	dataplanetest.Reconcile(t, k, s)
	var b nfnl.Batch
	for _, at := range []string{"10.96.0.0:80", "10.96.0.1:80", "192.0.2.1:30080", "192.0.2.2:30080", "192.0.2.2:30081", "[fd00:96::]:80", "[fd00:96::1]:80"} {
		to := netip.MustParseAddrPort(at)
		s := &schemas[desired.FamilyOf(to.Addr())]
		b.AddElement(s.table, s.rejected, s.addr(nfnl.AppendPort(nil, uint8(desired.TCP), to.Port()), to.Addr().As16()), nil, "")
	}
	limits := &limitSchemas[desired.IPv4] // of packets to web-0 when it had some
	b.AddElement(limits.table, limits.rejected, limits.addr(nfnl.AppendPort(nil, uint8(desired.TCP), 80), netip.MustParseAddr("10.96.0.0").As16()), nil, "")
	if err := k.conn.Commit(0, &b); err != nil {
		t.Fatal(err)
	}
	before := k.conn.Dumps
	s.DeleteService("default", "web-0")
	s.DeleteService("default", "port")
	dataplanetest.Apply(t, k, s)
	if n := k.conn.Dumps - before; n > 0 {
		t.Errorf("%d dumps", n)
	}
	at, err := k.RejectedAt()
	var left []string
	for key := range maps.Keys(at) {
		left = append(left, key.AddrPort.String())
	}
	if slices.Sort(left); err != nil || !slices.Equal(left, []string{"10.96.0.1:80", "192.0.2.2:30081", "[fd00:96::1]:80"}) {
		t.Errorf("there are numbers of %v: %v", left, err)
	}
}

// TestDeletionOfManyPorts deletes a Service of so many ports that one dump costs less than a question for each.
func TestDeletionOfManyPorts(t *testing.T) {
	k, s := newKernel(t), desired.New(desired.Config{})
	web(s, 1, 1)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.9.9"},
	}
	for i := range fewDestinations + 1 {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	s.SetService(svc)
	dataplanetest.Reconcile(t, k, s)
	var b nfnl.Batch
	of := &schemas[desired.IPv4]
	for _, at := range []string{"10.96.0.1:80", "10.96.9.9:1", "10.96.9.9:4097"} {
		to := netip.MustParseAddrPort(at)
		b.AddElement(of.table, of.rejected, of.addr(nfnl.AppendPort(nil, uint8(desired.TCP), to.Port()), to.Addr().As16()), nil, "")
	}
	if err := k.conn.Commit(0, &b); err != nil {
		t.Fatal(err)
	}
	before := k.conn.Requests
	s.DeleteService("default", "many")
	dataplanetest.Apply(t, k, s)
	if n := k.conn.Requests - before; n > 100 {
		t.Errorf("%d requests", n)
	}
	if at, err := k.RejectedAt(); err != nil || len(at) != 1 {
		t.Errorf("there are numbers of %v: %v", at, err)
	}
}
