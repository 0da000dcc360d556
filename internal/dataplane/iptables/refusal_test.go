// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestRefusal checks of which Service a line is that iptables-restore has refused.
func TestRefusal(t *testing.T) {
	b, change := &Dataplane{}, &desired.Change{}
	for i, name := range []string{"web", "web-1"} {
		port := desired.ServicePort{Namespace: "default", Name: name}
		pool := desired.PoolChange{ID: desired.PoolID(i), Service: port}
		key := desired.FrontendKey{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80), Protocol: desired.TCP}
		change.Pools = append(change.Pools, pool)
		change.Frontends = append(change.Frontends, desired.FrontendChange{New: &desired.Frontend{FrontendKey: key, Service: port}})
	}
	b.pools = make(dataplane.Pools[pool], 0)
	for i := range change.Pools {
		p := &pool{Pool: dataplane.NewPool(&change.Pools[i])}
		p.Refer(change.Frontends[i].New)
		b.pools.Set(change.Pools[i].ID, p)
	}
	for line, want := range map[string]string{
		`-A SLIP-TREE -d 10.96.0.1/32 -p tcp --dport 80 -m comment --comment "default/web-1" -g SLIP-SVC-X`: "web-1",
		"-A " + b.pools.Get(0).name() + " -j DNAT":                                                          "web",
	} {
		var refusal *dataplane.Refusal
		if errors.As(b.explain(errors.New("line 3 failed ("+line+")"), change), &refusal) != (want != "") || want != "" && refusal.Service.Name != want {
			t.Errorf("%s: %v", line, refusal)
		}
	}
	var unnamed *dataplane.Refusal
	if err := b.explain(errors.New("line 7 failed (COMMIT)"), change); !errors.As(err, &unnamed) || unnamed.Service.Name != "" {
		t.Error(err)
	}
	if err := b.explain(errors.New("line 7: RULE_APPEND failed (Cannot allocate memory)"), change); errors.As(err, new(*dataplane.Refusal)) {
		t.Error(err)
	}
	if err := b.explain(errors.New(`Another app is currently holding the xtables lock; -A SLIP -m comment --comment "default/web" -g X`), change); errors.As(err, new(*dataplane.Refusal)) {
		t.Error(err)
	}
}
