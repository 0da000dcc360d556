// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/executed"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// TestRules counts rules with few Services: kube-proxy's are as many more as there are
// more Services, for the last one in its list, and Slipstream's at most 40.
func TestRules(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	program, err := proxies.BuildSlipstream(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for variant, feature := range map[string]kerneltest.Feature{legacyVariant: kerneltest.IPTablesLegacy, nftVariant: kerneltest.IPTablesNFT} {
		t.Run(variant, func(t *testing.T) {
			kerneltest.Require(t, feature, kerneltest.IPSet)
			r := countFew(t, "-iptables", variant, "-slipstream", program)
			if len(r.Subjects) != 2 {
				t.Fatalf("%d subjects", len(r.Subjects))
			}
			for _, s := range r.Subjects {
				if !strings.Contains(s.Version, map[string]string{legacyVariant: "(legacy)", nftVariant: "(nf_tables)"}[variant]) {
					t.Errorf("%s: version %q", s.Name, s.Version)
				}
				for i, n := range []int{20, 40} {
					c, ok := s.With(n)
					if !ok || len(c.Rules) != 5 || c.Least <= 10 || c.Median < float64(c.Least) || float64(c.Most) < c.Median {
						t.Errorf("%s: %+v", s.Name, c)
					}
					switch {
					case s.Name == slipstreamIPTables:
						if c.Most > 40 || c.First != 0 || c.Last != 0 {
							t.Errorf("%s: %+v", s.Name, c)
						}
					// One of ten rules chooses the endpoint.
					case c.First <= 0 || c.Last < c.First+n-1-9 || i > 0 && c.Last < s.Counts[0].Last+20-9:
						t.Errorf("%s: %+v", s.Name, c)
					}
				}
			}
		})
	}
}

// countFew runs the command, and wants it to save what it prints.
func countFew(t *testing.T, args ...string) (r executed.Result) {
	t.Helper()
	tidy(t)
	save := filepath.Join(t.TempDir(), "saved.json")
	var out bytes.Buffer
	err := command(t.Context(), append([]string{"rules", "-services", "20,40", "-sample", "5", "-timeout", "1m", "-output", "json", "-save", save}, args...), &out, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := os.ReadFile(save)
	if err != nil || !bytes.Equal(saved, out.Bytes()) {
		t.Errorf("%v; what was saved is not what was printed:\n%s", err, saved)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRulesGivenUp has a subject that ends at once, which is not to hide the other one's
// numbers.
func TestRulesGivenUp(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.IPTablesLegacy)
	tidy(t)
	var out bytes.Buffer
	err := command(t.Context(), []string{"rules", "-services", "3", "-timeout", "1m", "-slipstream", "/bin/false"}, &out, t.Logf)
	if want := slipstreamIPTables + ": 3 Services: "; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), kubeProxyIPTables) {
		t.Errorf("error %v, want %q alone", err, want)
	}
	last := strings.TrimSpace(out.String())
	last = last[strings.LastIndexByte(last, '\n')+1:]
	if cells := strings.Fields(last); len(cells) != 9 || cells[1] != "-" || cells[4] == "-" || cells[8] == "-" {
		t.Errorf("last row %q of\n%s", last, &out)
	}
}

func TestParseRules(t *testing.T) {
	o, err := parseRules(nil)
	if err != nil || len(o.services) != 4 || o.services[3] != 10_000 || o.Endpoints != 10 || o.sample != 100 {
		t.Errorf("%+v %v", o, err)
	}
	for flags, want := range map[string]string{
		"-services 10,ten":                "-services: \"ten\"",
		"-services 10,10":                 "-services: 10 after 10",
		"-services 0":                     "-services: 0 after 0",
		"-services 500001":                "-services: 500001",
		"-services 500000 -endpoints 100": "-endpoints: 500000 Services of 100",
		"-sample 0":                       "-sample",
		"-iptables xtables":               `-iptables: "xtables"`,
		"many":                            `"many"`,
	} {
		if _, err := parseRules(strings.Fields(flags)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", flags, err, want)
		}
	}
}

// TestParseSYN has a packet with options of IP.
func TestParseSYN(t *testing.T) {
	b := make([]byte, 24+20)
	b[0] = 4<<4 | 6
	copy(b[16:], []byte{10, 128, 0, 7})
	copy(b[24:], []byte{0x80, 0x00, 0x1f, 0x90})
	for flags, want := range map[byte]bool{0x02: true, 0x12: false, 0x10: false, 0x04: false} {
		b[24+13] = flags
		to, ok := parseSYN(b)
		if ok != want || to != netip.MustParseAddrPort("10.128.0.7:8080") {
			t.Errorf("flags %#x: %v, %v", flags, to, ok)
		}
	}
	for n := range len(b) {
		if _, ok := parseSYN(b[:n]); ok {
			t.Errorf("%d bytes are a packet", n)
		}
	}
}
