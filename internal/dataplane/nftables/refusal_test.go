// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// TestRefusal has the kernel refuse an element: the error says which Service it is of.
func TestRefusal(t *testing.T) {
	k, s := newKernel(t), desired.New(desired.Config{})
	web(s, 0, 1)
	web(s, 1, 1)
	dataplanetest.Reconcile(t, k, s)
	other := *s.FrontendAt(webKey(1))
	other.Pool = s.FrontendAt(webKey(0)).Pool
	_, err := k.Apply(t.Context(), &desired.Change{Frontends: []desired.FrontendChange{{New: &other}}}) // there is an element with the key
	var refusal *dataplane.Refusal
	if !errors.As(err, &refusal) || refusal.Service.Name != "web-1" {
		t.Errorf("%v", err)
	}
}

// TestRefusalOfEndpoint has the kernel refuse an endpoint of a new Service: there is an element with the key.
func TestRefusalOfEndpoint(t *testing.T) {
	k, s := newKernel(t), desired.New(desired.Config{})
	web(s, 0, 1)
	dataplanetest.Reconcile(t, k, s)
	web(s, 1, 1)
	change := &s.Change().Change
	var batch nfnl.Batch
	for _, p := range change.Pools {
		schema := &schemas[p.Family]
		batch.AddElement(schema.table, schema.addressSets[p.Scope].endpoints, number(number(nil, k.writer.number(p.ID)), 0), make([]byte, schema.addrLen+4), "")
	}
	if err := k.dial().Commit(0, &batch); err != nil {
		t.Fatal(err)
	}
	_, err := k.Apply(t.Context(), change)
	var refusal *dataplane.Refusal
	if !errors.As(err, &refusal) || refusal.Service.Name != "web-1" {
		t.Errorf("%v", err)
	}
}
