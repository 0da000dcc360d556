// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// nftCommands are the machine's nft command, and those that the environment variable
// SLIPSTREAM_TEST_NFT names, with colons between: other versions.
func nftCommands() []string {
	return append([]string{"nft"}, filepath.SplitList(os.Getenv("SLIPSTREAM_TEST_NFT"))...)
}

// TestSavedRulesetLoads saves a ruleset with every feature, and a table of another program,
// and loads it. The next start makes of the copy what it should be.
func TestSavedRulesetLoads(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	for _, nft := range nftCommands() {
		for name, config := range map[string]desired.Config{
			"CIDRs":     smallTables(inCluster("10.244.0.0/16", "fd00:244::/32")),
			"interface": {DetectLocal: desired.DetectLocal{Mode: desired.ByInterfaceNamePrefix, Interface: "veth"}, MasqueradeAll: true},
		} {
			t.Run(nft+" "+name, func(t *testing.T) {
				k := newKernel(t)
				s := desired.New(config)
				fancy(s)
				web(s, 1, dataplanetest.Hosts(20)...)
				web(s, 6, dataplanetest.Hosts(startSize+1)...)
				web(s, 2)
				scheduled(s, 3, "rr")
				scheduled(s, 4, "maglev")
				scheduled(s, 5, "maglev,maglev-port")
				ranged(s, 7)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				dataplanetest.RunIn(t, k.ns, `
					add element ip slipstream affinity { 0x1 . 0x2 . 10.244.1.9 timeout 3h : 0x0 . 8080 . 10.244.1.2 }
					add element ip slipstream new-clients { 0x1 limit rate 1/day burst 5 packets }
					add element ip6 slipstream new-clients { 0x1 limit rate 1/day burst 5 packets }
					add element ip6 slipstream affinity { 0x1 . 0x2 . fd00::9 timeout 3h : 0x0 . 8080 . fd00::2 }
					add table inet firewall
					add chain inet firewall input { type filter hook input priority 0; policy drop; }`, nft, "-f", "-")
				saved := dataplanetest.ReloadRuleset(t, k.ns, nft, "")
				dataplanetest.SameRuleset(t, k.ns, nft, saved)
				if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
					t.Errorf("Check of the copy: %v", err)
				}
				next := &kernel{Dataplane: k.open(), ns: k.ns, t: t}
				defer next.Close()
				dataplanetest.Reconcile(t, next.Dataplane, s)
				next.has(s)
				if err := next.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestSavedRulesetIsHarmless loads a saved ruleset without Slipstream, beside another proxy
// that serves the same Service. Then Slipstream starts.
func TestSavedRulesetIsHarmless(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	const theirs = dataplanetest.FirstPort + 1
	for _, nft := range nftCommands() {
		t.Run(nft, func(t *testing.T) {
			s := newStreet(t, 2)
			s.shut(1, 2) // and port 0 is the Service's only backend
			dataplanetest.Apply(t, s.Dataplane, s.state)
			backend := func(when string, want uint16) {
				t.Helper()
				for _, from := range []*lab.Machine{&s.Client.Machine, &s.Node.Machine} {
					reply, err := from.Connect(lab.TCP, webKey(1).AddrPort, lab.Timeout(10*time.Second))
					if got := reply.Local.Port(); err != nil || got != want {
						t.Errorf("%s, from %s: backend %d, %v; want %d", when, from.Name(), got, err, want)
					}
				}
			}
			backend("at first", dataplanetest.FirstPort)
			// The other proxy's chains are older, so that ours would run first.
			dataplanetest.ReloadRuleset(t, s.Node.Namespace, nft, fmt.Sprintf(`table ip other {
				chain services { ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.3:%d; }
				chain prerouting { type nat hook prerouting priority -100; jump services; }
				chain output { type nat hook output priority -100; jump services; }
			}`, theirs))
			backend("with a loaded copy", theirs)
			dataplanetest.Reconcile(t, s.Dataplane, s.state)
			backend("after the start", dataplanetest.FirstPort)
		})
	}
}
