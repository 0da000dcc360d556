// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestRules counts rules with few Services: kube-proxy's grow with the number of Services, for
// the last one in its list, and Slipstream's are at most 40.
func TestRules(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	for variant, feature := range map[string]kerneltest.Feature{legacyVariant: kerneltest.IPTablesLegacy, nftVariant: kerneltest.IPTablesNFT} {
		t.Run(variant, func(t *testing.T) {
			kerneltest.Require(t, feature, kerneltest.IPSet)
			tidy(t)
			r, err := run(t, Rules, "--services", "20,40", "--sample", "40", "--iptables", variant)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Subjects) != 2 {
				t.Fatalf("%d subjects", len(r.Subjects))
			}
			for k, s := range r.Subjects {
				if !strings.Contains(s.Version, map[string]string{legacyVariant: "(legacy)", nftVariant: "(nf_tables)"}[variant]) {
					t.Errorf("%s: version %q", s.Name, s.Version)
				}
				for _, n := range []int{20, 40} {
					c := r.Find(rulesName(n)).Outcomes[k]
					if len(c.Values) != n || c.Lowest <= 10 || c.Median < c.Lowest || c.Highest < c.Median {
						t.Errorf("%s: %+v", s.Name, c)
					}
					switch {
					case s.Name == string(proxies.SlipstreamIPTables):
						if c.Highest > 40 {
							t.Errorf("%s: %+v", s.Name, c)
						}
					// From the first in the list to the last; one of ten rules chooses the endpoint.
					case c.Highest-c.Lowest < float64(n-1-9):
						t.Errorf("%s: %+v", s.Name, c)
					}
				}
			}
		})
	}
}

// TestRulesGivenUp measures a subject that ends at once. The other subject's numbers must still
// be reported.
func TestRulesGivenUp(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.IPTablesLegacy)
	tidy(t)
	r, err := run(t, Rules, "--services", "3", "--slipstream", "/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	err = r.Failures()
	if want := string(proxies.SlipstreamIPTables) + ": 3 Services: "; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), string(proxies.KubeProxyIPTables)) {
		t.Errorf("error %v, want %q alone", err, want)
	}
	// The cells of kube-proxy are there, those of the other one are not.
	found := false
	for line := range strings.Lines(out.String()) {
		if cells := strings.Fields(line); strings.HasPrefix(line, "3 Services") {
			found = true
			if cells[len(cells)-2] != "-" || cells[len(cells)-1] == "-" {
				t.Errorf("row %q", line)
			}
		}
	}
	if !found {
		t.Errorf("no row of 3 Services in\n%s", out.String())
	}
}
