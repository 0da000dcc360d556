// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServiceCIDRProblems leaves out ranges that are invalid, or of all addresses, and reports
// each.
func TestServiceCIDRProblems(t *testing.T) {
	s := New(Config{})
	s.SetServiceCIDR(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "0.0.0.0/0", "::/0", "nonsense"}},
	})
	u := s.Change()
	var fields []string
	for _, p := range u.Problems {
		fields = append(fields, p.Object+" "+p.Field)
	}
	want := []string{"ServiceCIDR kubernetes spec.cidrs[1]", "ServiceCIDR kubernetes spec.cidrs[2]", "ServiceCIDR kubernetes spec.cidrs[3]"}
	if !slices.Equal(fields, want) {
		t.Errorf("problems %q, want %q", fields, want)
	}
	if want := []Member{Range(netip.MustParsePrefix("10.96.0.0/16"))}; !slices.Equal(u.Sets[ServiceCIDRs].Added, want) {
		t.Errorf("ranges %v, want %v", u.Sets[ServiceCIDRs].Added, want)
	}
}
