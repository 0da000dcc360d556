// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCheckOfManyFrontends has other programs commit, with a Service of 5,000 external IPs. Checks look up few of
// them, as they keep changes of other Services waiting, and find it if all are gone.
func TestCheckOfManyFrontends(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{NodeName: "n1"})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for i := range 5000 {
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i>>8, i&255))
	}
	s.SetService(svc)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	other := k.dial()
	for range 3 {
		var batch nfnl.Batch
		batch.AddTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"}, "")
		batch.DeleteTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"})
		if err := other.Commit(0, &batch); err != nil {
			t.Fatal(err)
		}
		before := k.conn.Requests
		if err := k.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if n := k.conn.Requests - before; n > 1000 {
			t.Errorf("a check of one Service made %d requests", n)
		}
	}
	var batch nfnl.Batch
	batch.FlushSet(schemas[0].table, schemas[0].external)
	if err := other.Commit(0, &batch); err != nil {
		t.Fatal(err)
	}
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("all external IPs are gone: %v", err)
	}
}
