// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

func decoded(t *testing.T, text string) *Config {
	t.Helper()
	c, _, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOfMode checks that settings are taken from the block of the mode.
func TestOfMode(t *testing.T) {
	const text = kubeProxyDoc + `
iptables: {masqueradeAll: true, masqueradeBit: 1, minSyncPeriod: 2s, syncPeriod: 20s, localhostNodePorts: true}
nftables: {masqueradeAll: false, masqueradeBit: 3, minSyncPeriod: 4s, syncPeriod: 40s}
mode: `
	for mode, want := range map[string]struct {
		all       bool
		bit       int
		min, late time.Duration
		localhost bool
	}{
		"iptables": {true, 1, 2 * time.Second, 40 * time.Second, true},
		"nftables": {false, 3, 4 * time.Second, 80 * time.Second, false},
		`""`:       {true, 3, 4 * time.Second, 80 * time.Second, false},
	} {
		c := decoded(t, text+mode)
		if c.MasqueradeAll() != want.all || c.MasqueradeBit() != want.bit || c.MinSyncPeriod() != want.min || c.LateAfter() != want.late || c.LocalhostNodePorts() != want.localhost {
			t.Errorf("%s: %v %v %v %v %v", mode, c.MasqueradeAll(), c.MasqueradeBit(), c.MinSyncPeriod(), c.LateAfter(), c.LocalhostNodePorts())
		}
	}
	if got := decoded(t, kubeProxyDoc).MinSyncPeriod(); got != DefaultMinSyncPeriod {
		t.Errorf("minSyncPeriod is %v by default", got)
	}
	if got := decoded(t, text+"nftables\n---\n"+slipstreamDoc+"minSyncPeriod: 1ms").MinSyncPeriod(); got != time.Millisecond {
		t.Errorf("minSyncPeriod is %v in spite of Slipstream's document", got)
	}
}

// TestAcceleration checks that the gate turns the fast path off.
func TestAcceleration(t *testing.T) {
	for text, want := range map[string]int64{
		"": 20,
		"featureGates: {KubeProxyAcceleration: true}":  20,
		"featureGates: {KubeProxyAcceleration: false}": 0,
		"featureGates: {AllBeta: false}":               0,
		"featureGates: {AllAlpha: false}":              20,
	} {
		if got := decoded(t, kubeProxyDoc+text).FastPath().OffloadPacketThreshold; *got != want {
			t.Errorf("%s: threshold %d; want %d", text, *got, want)
		}
	}
}

// TestExternalIPs checks that the gate of KEP-5707 decides on external IPs.
func TestExternalIPs(t *testing.T) {
	for text, want := range map[string]bool{
		"": true,
		"featureGates: {AllowServiceExternalIPs: true}":  true,
		"featureGates: {AllowServiceExternalIPs: false}": false,
	} {
		if got := decoded(t, kubeProxyDoc+text).AllowExternalIPs(); got != want {
			t.Errorf("%s: %v; want %v", text, got, want)
		}
	}
}

func TestConntrack(t *testing.T) {
	for text, want := range map[string]sysctl.Conntrack{
		"":                    {Max: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
		"conntrack: {min: 0}": {Max: 65536, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
		"conntrack: {min: 1000000, maxPerCore: 1000000}": {Max: 1 << 20, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
		"conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true, udpTimeout: 1s, udpStreamTimeout: 2s}": {
			TCPBeLiberal: true, UDPTimeout: time.Second, UDPStreamTimeout: 2 * time.Second,
		},
	} {
		if got := decoded(t, kubeProxyDoc+text).Conntrack(2); got != want {
			t.Errorf("%s: %+v; want %+v", text, got, want)
		}
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.244.3.0/16": "10.244.0.0/16", "010.0.0.0/8": "10.0.0.0/8", "fd00::7/8": "fd00::/8", "0.0.0.0/0": "0.0.0.0/0",
		"10.0.0.0": "", "": "", "10.0.0.0/33": "", "::ffff:10.0.0.0/104": "", " 10.0.0.0/8": "",
	} {
		if p, ok := ParseRange(text); ok != (want != "") || ok && p.String() != want {
			t.Errorf("%q: %v, %v; want %q", text, p, ok, want)
		}
	}
}

// TestNotes checks the note about ranges of one family only.
func TestNotes(t *testing.T) {
	for addresses, want := range map[string]string{
		"":                    "",
		"primary":             "",
		"10.0.0.0/8":          "nodePortAddresses: has ranges of IPv4 only, so NodePorts answer on all IPv6 addresses",
		"fd00::/8":            "nodePortAddresses: has ranges of IPv6 only, so NodePorts answer on all IPv4 addresses",
		"10.0.0.0/8,fd00::/8": "",
		"all":                 "",
		"localhost":           "nodePortAddresses: NodePorts do not answer on loopback addresses: [127.0.0.0/8 ::1/128]",
		"primary,10.0.0.0/8":  "",
	} {
		got := ""
		for _, n := range decoded(t, kubeProxyDoc+"mode: nftables\ndetectLocalMode: NodeCIDR\nnodePortAddresses: ["+addresses+"]").Notes() {
			got += n.String()
		}
		if got != want {
			t.Errorf("%s: %q; want %q", addresses, got, want)
		}
	}
}

// TestIPVSNotes checks that the block iptables, which IPVS mode uses, is not noted as unused.
func TestIPVSNotes(t *testing.T) {
	_, notes, err := Decode([]byte(kubeProxyDoc + "mode: ipvs\niptables: {masqueradeAll: true, localhostNodePorts: true}"))
	if err != nil || len(notes) > 0 {
		t.Errorf("%v, %v", notes, err)
	}
}

// TestBalancing: ipvs.scheduler is used in nftables mode, unless it would give every Service a Maglev table.
func TestBalancing(t *testing.T) {
	for _, test := range []struct {
		mode      kubeproxy.ProxyMode
		ipvs, own string
		want      desired.Algorithm
		note      string
	}{
		{NFTables, "lc", "", desired.LeastConnections, ""},
		{NFTables, "sh", "", desired.Random, "ipvs.scheduler: has no effect: with sh, every Service would have a Maglev table; "},
		{NFTables, "mh", "", desired.Random, "ipvs.scheduler: has no effect: with mh, every Service"},
		{NFTables, "sh", "rr", desired.RoundRobin, ""},
		{NFTables, "sh", "sh", desired.Maglev, ""},
		{IPVS, "sh", "", desired.Random, ""},
	} {
		c := New()
		c.KubeProxy.Mode, c.KubeProxy.IPVS.Scheduler, c.Slipstream.Scheduler = test.mode, test.ipvs, test.own
		c.Complete()
		got, _ := c.Balancing()
		note := ""
		for _, n := range c.Notes() {
			if strings.HasSuffix(n.Field, "scheduler") {
				note = n.String()
			}
		}
		if got.Algorithm != test.want || (note == "") != (test.note == "") || !strings.HasPrefix(note, test.note) {
			t.Errorf("%+v: %s, %q", test, got.Algorithm, note)
		}
	}
}

// TestNodePortRanges checks the ranges of keywords, in any combination.
func TestNodePortRanges(t *testing.T) {
	for addresses, want := range map[string]string{
		"":                                 "[0.0.0.0/0 ::/0] false",
		"all":                              "[0.0.0.0/0 ::/0] false",
		"primary":                          "[] true",
		"localhost":                        "[127.0.0.0/8 ::1/128] false",
		"192.0.2.7/24":                     "[192.0.2.0/24] false",
		"localhost, primary":               "[127.0.0.0/8 ::1/128] true",
		"fd00::/8, all, fd00::/8, primary": "[fd00::/8 0.0.0.0/0 ::/0 fd00::/8] true",
	} {
		ranges, primary := decoded(t, kubeProxyDoc+"nodePortAddresses: ["+addresses+"]").NodePortRanges()
		if got := fmt.Sprint(ranges, primary); got != want {
			t.Errorf("%s: %s; want %s", addresses, got, want)
		}
	}
}

// TestNodePortDefaults checks that each mode has kube-proxy's default of nodePortAddresses.
func TestNodePortDefaults(t *testing.T) {
	for mode, want := range map[string][]string{NFTables: {Primary}, IPTables: nil, "": {All}} {
		if got := decoded(t, kubeProxyDoc+"mode: '"+mode+"'").KubeProxy.NodePortAddresses; !slices.Equal(got, want) {
			t.Errorf("mode %q: %q; want %q", mode, got, want)
		}
	}
}

// TestGateNotes checks that gates without effect have a note, with the reason if there is one.
func TestGateNotes(t *testing.T) {
	for gate, want := range map[string]string{
		"NFTablesNetlink":                     "1 featureGates[NFTablesNetlink]: has no effect on Slipstream",
		"WatchList":                           "1 featureGates[WatchList]: has no effect on Slipstream",
		"KubeProxyNFTablesLocalhostNodePorts": "",
		"KubeProxyIPVS":                       "",
		"OfAnotherRelease":                    "0 featureGates[OfAnotherRelease]: has no effect: kube-proxy " + KubernetesVersion + " has no such gate",
	} {
		var got []string
		c := decoded(t, kubeProxyDoc+"mode: nftables\ndetectLocalMode: NodeCIDR\nfeatureGates: {"+gate+": true}")
		for _, n := range c.Notes() {
			got = append(got, fmt.Sprint(n.Verbosity, " ", n))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: %q; want %q", gate, got, want)
		}
	}
}

// TestHandlesLocalhostNodePorts checks that the metrics of KEP-6032 exist only in nftables mode
// with its gate enabled.
func TestHandlesLocalhostNodePorts(t *testing.T) {
	for text, want := range map[string]bool{
		"mode: nftables": false,
		"mode: nftables\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}": true,
		"mode: nftables\nfeatureGates: {AllAlpha: true}":                            true,
		"mode: iptables\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}": false,
	} {
		if got := decoded(t, kubeProxyDoc+text).HandlesLocalhostNodePorts(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestGatesOfReleases: KEP-6032 is on by default from Kubernetes 1.38 on.
func TestGatesOfReleases(t *testing.T) {
	for release, want := range map[string]bool{"v1.37.2": false, "v1.38.0": true, "v1.39.1": true} {
		if got := gatesOf(release).Enabled(localhostNodePorts); got != want {
			t.Errorf("%s: %v", release, got)
		}
	}
}

// TestUnknownPods checks the note about missing ranges: at verbosity 0 if there are none,
// because many clusters have one family only.
func TestUnknownPods(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "0 clusterCIDR: has no range of IPv4 or IPv6,",
		"clusterCIDR: 10.0.0.0/8":            "2 clusterCIDR: has no range of IPv6,",
		"clusterCIDR: fd00::/8":              "2 clusterCIDR: has no range of IPv4,",
		"clusterCIDR: 'fd00::/8,10.0.0.0/8'": "",
		"detectLocalMode: NodeCIDR":          "",
		"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}": "",
	} {
		var got []string
		for _, n := range decoded(t, kubeProxyDoc+"mode: nftables\n"+text).Notes() {
			got = append(got, fmt.Sprint(n.Verbosity, " ", n))
		}
		if len(got) != min(1, len(want)) || !strings.HasPrefix(strings.Join(got, ""), want) {
			t.Errorf("%s: %q; want %s", text, got, want)
		}
	}
}

// TestNodeIP checks that each valid notation gives the address.
func TestNodeIP(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.0.0.1": "10.0.0.1", "'::ffff:10.0.0.1'": "10.0.0.1", "fd00::1": "fd00::1",
		"0.0.0.0": "invalid IP", "'::'": "invalid IP", "000.0.0.0": "invalid IP", "'::ffff:0.0.0.0'": "invalid IP",
	} {
		c := decoded(t, kubeProxyDoc+"bindAddress: "+text)
		if errs := c.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", text, errs)
		}
		if got := c.NodeIP().String(); got != want {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
}

// TestExcludeCIDRs checks that all valid ranges are returned.
func TestExcludeCIDRs(t *testing.T) {
	got := fmt.Sprint(decoded(t, kubeProxyDoc+"ipvs: {excludeCIDRs: [010.0.0.0/8, 'fd00::7/8']}").ExcludeCIDRs())
	if want := "[10.0.0.0/8 fd00::/8]"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
