// SPDX-License-Identifier: Apache-2.0

package page

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
)

// TestVerdictInWords checks that the page says in words, as the command does, where a connection stops.
func TestVerdictInWords(t *testing.T) {
	script, err := assets.ReadFile("assets/page.js")
	if err != nil || !strings.Contains(string(script), "STOPS HERE") || !strings.Contains(string(script), "MAY STOP") {
		t.Errorf("%v: no verdict in words", err)
	}
}

// TestUnusedEndpoints describes a Service with a ready endpoint of another node and internalTrafficPolicy Local:
// its connections are dropped, so the table has no endpoint of it.
func TestUnusedEndpoints(t *testing.T) {
	var r row
	r.describe(&see.Service{ServiceView: desired.ServiceView{Ports: []desired.PortView{{Total: 1, Ready: 1, Pools: []desired.PoolView{{Scope: "Local", IfEmpty: "drop"}}}}}})
	if r.Used != 0 {
		t.Errorf("%d of %d endpoints", r.Used, r.Total)
	}
}
