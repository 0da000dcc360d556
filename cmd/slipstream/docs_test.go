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

// TestDocumentsClaims checks documents for claims that a first user found untrue, by words that must be there
// or must not.
func TestDocumentsClaims(t *testing.T) {
	for _, c := range []struct{ name, file, want, not string }{
		{name: "a cost that depends on the change is nftables mode's", file: "README.md", want: "In nftables mode, a change", not: "never on the size"},
		{name: "a packet costs conntrack and NAT", file: "README.md", not: "costs nothing"},
		{name: "make test is long", file: "README.md", want: "about an hour"},
		{name: "Ubuntu is not tested", file: "README.md", not: "Ubuntu"},
		{name: "config.conf is in kube-proxy's pod", file: "README.md", want: "get configmap kube-proxy", not: "--config /var/lib/kube-proxy/"},
		{name: "kube-proxy is to be stopped", file: "README.md", want: "Stop kube-proxy"},
		{name: "ratios have no unit", file: "README.md", want: "x faster"},
		{name: "maturity", file: "README.md", want: "**Maturity:**"},
		{name: "explain is shown", file: "README.md", want: "$ slipstream explain"},
		{name: "a table", file: "examples/README.md", not: "||\n"},
		{name: "unknown fields come first", file: "docs/manifests.md", want: "only these are reported", not: "Each mistake is one line"},
		{name: "versions that the chart accepts", file: "docs/support.md", want: "1.31 to 1.33"},
		{name: "the pod of a node", file: "docs/see.md", want: "--field-selector spec.nodeName="},
		{name: "the job of the alerts", file: "docs/metrics.md", want: "which the ServiceMonitor of the chart and of kustomize sets"},
		{name: "many nodes", file: "docs/install.md", want: "kind: DaemonSet"},
		{name: "aims", file: "docs/performance.md", not: "**missed**"},
		{name: "starts", file: "docs/performance.md", want: "| start until Services answer |", not: "0.95 s"},
		{name: "NodePort addresses", file: "docs/services.md", not: "A family without a range serves them"},
		{name: "ambient meshes", file: "docs/sockets.md", want: "ambient"},
		{name: "short connections are not faster", file: "docs/performance.md", not: "neither engine changes them"},
		{name: "a packet's cost", file: "docs/fastpath.md", not: "a packet costs a tenth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := os.ReadFile("../../" + c.file)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(strings.Fields(string(raw)), " ") // lines may be broken anywhere
			if strings.HasSuffix(c.not, "\n") {
				text = string(raw)
			}
			if !strings.Contains(text, c.want) {
				t.Errorf("%s does not say %q", c.file, c.want)
			}
			if c.not != "" && strings.Contains(text, c.not) {
				t.Errorf("%s says %q", c.file, c.not)
			}
		})
	}
}
