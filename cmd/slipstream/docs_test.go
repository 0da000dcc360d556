// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestConfigurationDocs checks that docs/configuration.md has a row for each flag of
// "slipstream run", with the field that it sets, and no other rows.
func TestConfigurationDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Flags\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (?:`-v`, )?`--([a-z0-9-]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(section, -1) {
		rows[row[1]] = row[2]
	}
	newRun().Flags().VisitAll(func(f *pflag.Flag) {
		row, ok := rows[f.Name]
		if !ok {
			t.Errorf("no row for --%s", f.Name)
		}
		delete(rows, f.Name)
		field, of := strings.CutPrefix(row, "`")
		if !of {
			return
		}
		field = strings.TrimSuffix(field, "`")
		// Flags for iptables mode that set fields of nftables mode too.
		if former := strings.Replace(field, "nftables.", "iptables.", 1); !sets(f.Name, field) && !sets(f.Name, former) {
			t.Errorf("--%s does not set %s", f.Name, field)
		}
	})
	for name := range rows {
		t.Errorf("a row for --%s, which is no flag", name)
	}
	for name := range otherNames {
		if newRun().Flags().Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
}

// TestKubeProxysFlags checks that all flags of kube-proxy v1.37 exist.
func TestKubeProxysFlags(t *testing.T) {
	fs := newRun().Flags()
	for _, name := range strings.Fields(`bind-address bind-address-hard-fail boot-id-file cleanup cluster-cidr config
		config-sync-period conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
		conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode feature-gates
		healthz-bind-address healthz-port hostname-override init-only iptables-localhost-nodeports iptables-masquerade-bit
		iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp
		ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst kube-api-content-type kube-api-qps
		kubeconfig log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size
		log-text-split-stream logging-format machine-id-file masquerade-all master metrics-bind-address metrics-port
		nodeport-addresses oom-score-adj pod-bridge-interface pod-interface-name-prefix profiling proxy-mode
		show-hidden-metrics-for-version v version vmodule write-config-to`) {
		if fs.Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
}
