// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
)

// TestPodAsClient finds the address of a pod in the family of the destination.
func TestPodAsClient(t *testing.T) {
	x := &explainer{ctx: t.Context(), view: &View{Node: "n1"}}
	x.to = desired.FrontendKey{AddrPort: netip.MustParseAddrPort("[fd00:96::1]:80"), Protocol: desired.TCP}
	x.view.Pod = func(_ context.Context, name types.NamespacedName) (string, []netip.Addr, error) {
		all := []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00::2")}
		if name.Name == "single" {
			all = all[:1]
		}
		return name.Namespace, all, nil // the namespace stands for the node
	}
	if a, err := x.clientAddr("n1/client"); err != nil || a.String() != "fd00::2" {
		t.Errorf("%s, %v", a, err)
	}
	for text, want := range map[string]string{"n1/single": "no IPv6 address", "n2/client": `on node "n2"`} {
		if _, err := x.clientAddr(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
