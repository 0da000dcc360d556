// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// changes returns the lines of a configuration that differ from the one without flags.
func changes(t *testing.T, c *config.Config) (lines []string) {
	t.Helper()
	text := func(c *config.Config) []string {
		data, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		path := map[int]string{}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimRight(line, "\n")
			depth := len(line) - len(strings.TrimLeft(line, " -"))
			name, _, _ := strings.Cut(line[depth:], ":")
			path[depth] = name
			prefix := ""
			for d := range depth {
				if path[d] != "" {
					prefix += path[d] + "."
				}
			}
			for d := depth + 1; d < 9; d++ {
				delete(path, d)
			}
			all = append(all, prefix+line[depth:])
		}
		return all
	}
	usual := text(parsed(t, "--proxy-mode nftables"))
	for _, line := range text(c) {
		if !slices.Contains(usual, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestRunFlags checks that each of kube-proxy's flags sets its field.
func TestRunFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"":                                                      "",
		"--bind-address fd00::1":                                "bindAddress: fd00::1",
		"--bind-address-hard-fail":                              "bindAddressHardFail: true",
		"--cluster-cidr 10.0.0.0/8,fd00::/8":                    "clusterCIDR: 10.0.0.0/8,fd00::/8",
		"--config-sync-period 1m":                               "configSyncPeriod: 1m0s",
		"--conntrack-max-per-core 1":                            "conntrack.maxPerCore: 1",
		"--conntrack-min 1":                                     "conntrack.min: 1",
		"--conntrack-tcp-be-liberal":                            "conntrack.tcpBeLiberal: true",
		"--conntrack-tcp-timeout-close-wait 1m":                 "conntrack.tcpCloseWaitTimeout: 1m0s",
		"--conntrack-tcp-timeout-established 0":                 "conntrack.tcpEstablishedTimeout: 0s",
		"--conntrack-udp-timeout 1m":                            "conntrack.udpTimeout: 1m0s",
		"--conntrack-udp-timeout-stream 1m":                     "conntrack.udpStreamTimeout: 1m0s",
		"--detect-local-mode NodeCIDR":                          "detectLocalMode: NodeCIDR",
		"--feature-gates AllAlpha=true,LoggingBetaOptions=true": "featureGates: featureGates.AllAlpha: true featureGates.LoggingBetaOptions: true",
		"--healthz-bind-address 1.2.3.4":                        "healthzBindAddress: 1.2.3.4:10256",
		"--healthz-bind-address ::1 --healthz-port 7":           "healthzBindAddress: '[::1]:7'",
		"--healthz-bind-address=":                               "",
		"--healthz-port 0":                                      `healthzBindAddress: ""`,
		"--hostname-override  N1":                               "hostnameOverride: n1",
		"--iptables-localhost-nodeports=false":                  "iptables.localhostNodePorts: false",
		"--iptables-masquerade-bit 3":                           "iptables.masqueradeBit: 3",
		"--iptables-min-sync-period 2s":                         "iptables.minSyncPeriod: 2s nftables.minSyncPeriod: 2s",
		"--iptables-min-sync-period 0":                          "",
		"--iptables-sync-period 20s":                            "iptables.syncPeriod: 20s nftables.syncPeriod: 20s",
		"--ipvs-exclude-cidrs 10.0.0.0/8":                       "ipvs.excludeCIDRs: ipvs.excludeCIDRs.10.0.0.0/8",
		"--ipvs-min-sync-period 2s":                             "ipvs.minSyncPeriod: 2s",
		"--ipvs-scheduler sh":                                   "ipvs.scheduler: sh",
		"--ipvs-strict-arp":                                     "ipvs.strictARP: true",
		"--ipvs-sync-period 20s":                                "ipvs.syncPeriod: 20s",
		"--ipvs-tcp-timeout 1s":                                 "ipvs.tcpTimeout: 1s",
		"--ipvs-tcpfin-timeout 1s":                              "ipvs.tcpFinTimeout: 1s",
		"--ipvs-udp-timeout 1s":                                 "ipvs.udpTimeout: 1s",
		"--kube-api-burst 1":                                    "clientConnection.burst: 1",
		"--kube-api-content-type application/json":              "clientConnection.contentType: application/json",
		"--kube-api-qps 1.5":                                    "clientConnection.qps: 1.5",
		"--kubeconfig /k":                                       "clientConnection.kubeconfig: /k",
		"--log-flush-frequency 1s":                              "logging.flushFrequency: 1s",
		"--log-text-split-stream --feature-gates LoggingAlphaOptions=true":       "featureGates: featureGates.LoggingAlphaOptions: true logging.options.text.splitStream: true",
		"--log-json-split-stream --feature-gates LoggingAlphaOptions=true":       "featureGates: featureGates.LoggingAlphaOptions: true logging.options.json.splitStream: true",
		"--log-json-info-buffer-size 1 --feature-gates LoggingAlphaOptions=true": `featureGates: featureGates.LoggingAlphaOptions: true logging.options.json.infoBufferSize: "1"`,
		"--log-text-info-buffer-size 1 --feature-gates LoggingAlphaOptions=true": `featureGates: featureGates.LoggingAlphaOptions: true logging.options.text.infoBufferSize: "1"`,
		"--logging-format json":                  "logging.format: json",
		"--masquerade-all":                       "iptables.masqueradeAll: true nftables.masqueradeAll: true",
		"--master http://[::1]:1":                "",
		"--metrics-bind-address 1.2.3.4:5":       "metricsBindAddress: 1.2.3.4:5",
		"--metrics-bind-address=":                `metricsBindAddress: ""`,
		"--metrics-port 0":                       `metricsBindAddress: ""`,
		"--nftables-masquerade-bit 3":            "nftables.masqueradeBit: 3",
		"--nodeport-addresses 10.0.0.0/8":        "nodePortAddresses.10.0.0.0/8",
		"--oom-score-adj 5":                      "oomScoreAdj: 5",
		"--pod-bridge-interface cni0":            "detectLocal.bridgeInterface: cni0",
		"--pod-interface-name-prefix veth":       "detectLocal.interfaceNamePrefix: veth",
		"--pod_interface_name_prefix veth":       "detectLocal.interfaceNamePrefix: veth",
		"--profiling":                            "enableProfiling: true",
		"--show-hidden-metrics-for-version 1.36": `showHiddenMetricsForVersion: "1.36"`,
		"-v 3":                                   "logging.verbosity: 3",
		"--vmodule run=4":                        "logging.vmodule: logging.vmodule.filePattern: run logging.vmodule.verbosity: 4",
		"--boot-id-file /b --machine-id-file /m": "",

		"--check-period 1s":            "checkPeriod: 1s",
		"--verify-period 10m":          "verifyPeriod: 10m0s",
		"--status-socket /s":           "statusSocket: /s",
		"--ui-bind-address [::1]:80":   "uiBindAddress: '[::1]:80'",
		"--socket-load-balancing tcp":  "socketLoadBalancing: tcp",
		"--socket-exclude-pods true":   `socketExcludePods: "true"`,
		"--service-metrics":            "serviceMetrics: true",
		"--min-sync-period 1s":         "minSyncPeriod: 1s",
		"--offload-packet-threshold 0": "fastPath.offloadPacketThreshold: 0",
		"--scope all":                  "fastPath.scope: all",
		"--interfaces interface.mtu>9": "fastPath.interfaces: interface.mtu>9",
		"--exclude-pods true":          `fastPath.excludePods: "true"`,
		"--fast-path-engine auto":      "fastPath.engine: auto",
		"--hardware-offload off":       `fastPath.hardwareOffload: "off"`,
	} {
		got := strings.Join(changes(t, parsed(t, "--proxy-mode nftables "+flag)), " ")
		if got != want {
			t.Errorf("%s: %s; want %s", flag, got, want)
		}
	}
}

// TestStandAlone checks that a proxy with manifests changes no settings of the machine.
func TestStandAlone(t *testing.T) {
	got := changes(t, parsed(t, "--manifests /m"))
	want := []string{
		"conntrack.maxPerCore: 0", "conntrack.tcpCloseWaitTimeout: 0s", "conntrack.tcpEstablishedTimeout: 0s",
		`healthzBindAddress: ""`, `metricsBindAddress: ""`, "oomScoreAdj: null", "manifests: /m",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	got = changes(t, parsed(t, "--manifests /m --conntrack-min 7 --conntrack-tcp-timeout-established 1m --conntrack-tcp-timeout-close-wait 2m --healthz-bind-address 1.2.3.4 --metrics-bind-address 1.2.3.4 --oom-score-adj 1"))
	want = []string{
		"conntrack.min: 7", "conntrack.tcpCloseWaitTimeout: 2m0s", "conntrack.tcpEstablishedTimeout: 1m0s",
		"healthzBindAddress: 1.2.3.4:10256", "metricsBindAddress: 1.2.3.4:10249", "oomScoreAdj: 1", "manifests: /m",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

// TestNoMode checks that settings have the meaning of iptables mode if no mode is set.
func TestNoMode(t *testing.T) {
	c, notes, err := parse(t, "--kubeconfig /k --iptables-masquerade-bit 3 --cluster-cidr 10.0.0.0/8,fd00::/8")
	if err != nil || c.Mode() != config.NFTables || c.MasqueradeBit() != 3 {
		t.Errorf("mode %s, bit %d, error %v", c.Mode(), c.MasqueradeBit(), err)
	}
	if got := c.KubeProxy.NodePortAddresses; !slices.Equal(got, []string{config.All}) {
		t.Errorf("NodePorts answer on %q", got)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0].String(), "--proxy-mode: is not set") {
		t.Errorf("notes %v", notes)
	}
}

// TestNotes checks that there is a note for each flag without effect.
func TestNotes(t *testing.T) {
	_, notes, err := parse(t, "--proxy-mode nftables --detect-local-mode NodeCIDR --boot-id-file /b --config-sync-period 1m --iptables-localhost-nodeports --iptables-masquerade-bit 1"+
		" --ipvs-strict-arp --ipvs-exclude-cidrs 10.0.0.0/8 --show-hidden-metrics-for-version 1.36 --feature-gates WatchList=true -v 2 --iptables-sync-period 1m")
	var got []string
	for _, n := range notes {
		got = append(got, n.Field)
	}
	want := []string{
		"--boot-id-file", "--config-sync-period", "--iptables-localhost-nodeports", "--iptables-masquerade-bit",
		"--ipvs-strict-arp", "--show-hidden-metrics-for-version", "featureGates[WatchList]",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v; %q; want %q", err, got, want)
	}
}

// TestPrecedence checks that a file overrides kube-proxy's flags, as in kube-proxy, and that
// flags about logs and Slipstream's own flags override the file.
func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	const text = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: of-file
clusterCIDR: 10.0.0.0/8
logging: {verbosity: 1, vmodule: [{filePattern: of_file, verbosity: 1}]}
---
apiVersion: slipstream.config/v1beta1
kind: SlipstreamConfiguration
checkPeriod: 1s
minSyncPeriod: 1s
fastPath: {offloadPacketThreshold: 7, scope: all}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := changes(t, parsed(t, "--config "+file))
	want := []string{
		"clusterCIDR: 10.0.0.0/8", "hostnameOverride: of-file", "logging.verbosity: 1", "logging.vmodule:",
		"logging.vmodule.filePattern: of_file", "logging.vmodule.verbosity: 1", "checkPeriod: 1s", "fastPath.offloadPacketThreshold: 7", "fastPath.scope: all", "minSyncPeriod: 1s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}

	c, notes, err := parse(t, "--config "+file+" --hostname-override of-flag --cluster-cidr 172.16.0.0/12 --proxy-mode ipvs --healthz-port 0 -v 4 --vmodule of_flag=2 --min-sync-period 2s --offload-packet-threshold 8")
	if err != nil {
		t.Fatal(err)
	}
	got = changes(t, c)
	want = []string{
		"clusterCIDR: 10.0.0.0/8", "hostnameOverride: of-flag", "logging.verbosity: 4", "logging.vmodule:",
		"logging.vmodule.filePattern: of_flag", "logging.vmodule.verbosity: 2", "logging.vmodule.filePattern: of_file", "logging.vmodule.verbosity: 1",
		"checkPeriod: 1s", "fastPath.offloadPacketThreshold: 8", "fastPath.scope: all", "minSyncPeriod: 2s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	var ignored []string
	for _, n := range notes {
		if n.Verbosity == 0 {
			ignored = append(ignored, n.String())
		}
	}
	slices.Sort(ignored)
	want = []string{"--cluster-cidr: is ignored with --config", "--healthz-port: is ignored with --config", "--proxy-mode: is ignored with --config"}
	if !slices.Equal(ignored, want) {
		t.Errorf("%q; want %q", ignored, want)
	}

	// The error names the field's path for a mistake in the file, and the flag otherwise.
	_, _, err = parse(t, "--config "+file+" --scope some")
	if err == nil || !strings.Contains(err.Error(), "--scope: Invalid") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "10.0.0.0/8", "x", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = parse(t, "--config "+file+" --cluster-cidr 10.0.0.0/8")
	if err == nil || !strings.Contains(err.Error(), "clusterCIDR: Invalid") || strings.Contains(err.Error(), "--cluster-cidr") {
		t.Errorf("%v", err)
	}
}

// TestFastPathMistakes checks that each mistake in the settings of the fast path, and in the
// expression that excludes pods from sockets, is reported with the field's path, and that the defaults are valid.
func TestFastPathMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	for text, want := range map[string]string{
		"offloadPacketThreshold: -1":         "fastPath.offloadPacketThreshold: Invalid value: -1: must be a number of packets from 0 to 2147483647",
		"offloadPacketThreshold: 2147483648": "fastPath.offloadPacketThreshold: Invalid value: 2147483648: must be a number",
		"scope: most":                        `fastPath.scope: Invalid value: "most": scope "most": is neither services nor all`,
		"interfaces: interface.colour":       `fastPath.interfaces: Invalid value: "interface.colour": interface expression "interface.colour": column 10: undefined field 'colour'`,
		"excludePods: pod.label":             `fastPath.excludePods: Invalid value: "pod.label": pod expression "pod.label": column 4: undefined field 'label'`,
		"engine: xdp":                        `fastPath.engine: Invalid value: "xdp": engine "xdp": is none of flowtable, ebpf and auto`,
		"hardwareOffload: maybe":             `fastPath.hardwareOffload: Invalid value: "maybe": hardware offload "maybe": is none of auto, on and off`,
	} {
		text = "apiVersion: slipstream.config/v1beta1\nkind: SlipstreamConfiguration\nfastPath: {" + text + "}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := parse(t, "--config "+file); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
	const want = `--socket-exclude-pods: Invalid value: "pod.label": pod expression "pod.label": column 4: undefined field 'label'`
	if _, _, err := parse(t, "--socket-exclude-pods pod.label"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
	got, errs := parseFastPath(&config.New().Slipstream.FastPath, nil)
	if got.Threshold != 20 || got.Scope != fastpath.Services || got.Hardware != fastpath.Auto || got.Engine != fastpath.Flowtable || got.Interfaces != nil || len(errs) > 0 {
		t.Errorf("defaults: %+v, %v", got, errs)
	}
}

// TestModesNotRun checks that actions that run no mode accept all of kube-proxy's modes.
func TestModesNotRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	const text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{"--config " + file, "--proxy-mode ipvs --ipvs-exclude-cidrs 10.0.0.0/8"} {
		for _, only := range []string{"", "--cleanup ", "--init-only ", "--write-config-to /out "} {
			c, _, err := parse(t, only+of)
			if err != nil {
				t.Errorf("%s%s: %v", only, of, err)
				continue
			}
			if c.Mode() != config.IPVS || !slices.Equal(c.ExcludeCIDRs(), ranges("10.0.0.0/8")) {
				t.Errorf("%s%s: mode %s, without %v", only, of, c.Mode(), c.ExcludeCIDRs())
			}
		}
	}
	if _, _, err := parse(t, "--cleanup --proxy-mode userspace"); err == nil {
		t.Error("kube-proxy has no mode userspace")
	}
}

// TestBindAddress checks that the address is used as it was validated.
func TestBindAddress(t *testing.T) {
	c := parsed(t, "--proxy-mode nftables --detect-local-mode NodeCIDR --bind-address 010.0.0.1")
	if got := desiredConfig(c, "n1", desired.Families{}).NodeIP.String(); got != "10.0.0.1" {
		t.Errorf("%s", got)
	}
}

// TestNoArgs checks that empty arguments are accepted, as by kube-proxy.
func TestNoArgs(t *testing.T) {
	for _, program := range []string{"kube-proxy", "slipstream run"} {
		for args, want := range map[string]string{"--version": "", "--version,": "", "--version,,": "", "--version, ": "unknown command", "--version,x,": "unknown command"} {
			path, sub, _ := strings.Cut(program, " ")
			cmd := commandFor(path)
			cmd.SetArgs(append(strings.Fields(sub), strings.Split(args, ",")...))
			cmd.SetOut(io.Discard)
			if err := cmd.ExecuteContext(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v; want %s", program, args, err, want)
			}
		}
	}
}

// TestExternalIPsGate checks that the feature gate of KEP-5707 reaches the desired state.
func TestExternalIPsGate(t *testing.T) {
	c := config.New()
	for _, allowed := range []bool{true, false} {
		c.KubeProxy.FeatureGates = map[string]bool{"AllowServiceExternalIPs": allowed}
		if got := desiredConfig(c, "n1", desired.Families{}).NoExternalIPs; got == allowed {
			t.Errorf("allowed %v: external IPs ignored: %v", allowed, got)
		}
	}
}

// TestIPTablesChangesWhole: in iptables mode, a change in parts would cost all rules for each part.
func TestIPTablesChangesWhole(t *testing.T) {
	for mode, whole := range map[string]bool{config.IPTables: true, config.NFTables: false, config.IPVS: false} {
		c := parsed(t, "--detect-local-mode NodeCIDR --proxy-mode "+mode)
		if got := desiredConfig(c, "n1", desired.Families{}).NamespaceChange > desired.MaxElements; got != whole {
			t.Errorf("%s: %t", mode, got)
		}
	}
}

// TestExcludePods checks that the expression reaches the desired state, of the agent as well.
func TestExcludePods(t *testing.T) {
	c, o := config.New(), agentOptions{fastPath: config.New().Slipstream.FastPath}
	if desiredConfig(c, "n1", desired.Families{}).SlowPathPod != nil {
		t.Error("pods are selected by default")
	}
	c.Slipstream.FastPath.ExcludePods = `pod.name == "a"`
	o.fastPath.ExcludePods = `pod.name == "a"`
	_, agents, err := o.configs(&pflag.FlagSet{})
	if err != nil {
		t.Fatal(err)
	}
	if desiredConfig(config.New(), "n1", desired.Families{}).DirectPod != nil {
		t.Error("pods are selected for sockets by default")
	}
	c.Slipstream.SocketExcludePods = `pod.name == "b"`
	sockets := desiredConfig(c, "n1", desired.Families{}).DirectPod
	for what, selects := range map[string]func(*corev1.Pod) bool{"sockets": sockets, "run": desiredConfig(c, "n1", desired.Families{}).SlowPathPod, "fastpath": agents.SlowPathPod} {
		for name, want := range map[string]bool{"a": true, "b": false} {
			if got := selects(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}); got != want {
				t.Errorf("%s: pod %s: %t", what, name, got)
			}
		}
	}
}
