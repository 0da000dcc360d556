// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// recorded are the rulesets in testdata, which say whether they were recorded, in the order of docs/fastpath.md.
var recorded = []struct{ file, name, pods string }{
	{"ufw.iptables", "ufw 0.36.2", "veth"},
	{"firewalld.nft", "firewalld (nftables)", "veth"},
	{"docker.iptables", "Docker 20.10", "veth"},
	{"flannel.iptables", "flannel, kube-proxy's chains, policy DROP (written by hand)", "veth"},
	{"calico.iptables", "Calico with policies (written by hand)", "cali"},
	{"kube-router.iptables", "kube-router with policies (written by hand)", "veth"},
}

// between is a direction of a connection in the hook forward.
type between struct{ src, dst, in, out string }

func (b between) back() between { return between{b.dst, b.src, b.out, b.in} }

// keeps reports whether the rules keep a direction of a TCP connection on the slow path.
func (e *Established) keeps(b between) bool {
	src, dst := netip.MustParseAddrPort(b.src), netip.MustParseAddrPort(b.dst)
	name := func(s string) []byte { return append([]byte(s), make([]byte, unix.IFNAMSIZ-len(s))...) }
	port := func(p uint16) []byte { return []byte{byte(p >> 8), byte(p)} }
	fields := map[Field][]byte{
		Source: src.Addr().AsSlice(), Destination: dst.Addr().AsSlice(), SourcePort: port(src.Port()), DestinationPort: port(dst.Port()),
		In: name(b.in), Out: name(b.out),
	}
	for _, w := range e.Ways {
		if w.Protocol != unix.IPPROTO_TCP || w.IPv6 != src.Addr().Is6() {
			continue
		}
		i := slices.IndexFunc(w.Steps, func(s Step) bool {
			return !slices.ContainsFunc(s.When, func(c Condition) bool {
				return c.Not == slices.ContainsFunc(c.Ranges, func(r Range) bool {
					return bytes.Compare(r.First, fields[c.Field]) <= 0 && bytes.Compare(fields[c.Field], r.Last) <= 0
				})
			})
		})
		if i >= 0 && w.Steps[i].Keep {
			return true
		}
	}
	return false
}

// newLab is a node for rules.
func newLab(t *testing.T) *lab.Node {
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	n, err := l.Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func examine(t *testing.T, n *lab.Node) (e *Established, err error) {
	err = n.Do(func() error {
		conn, err := nfnl.Dial(0)
		if err != nil {
			return err
		}
		defer conn.Close()
		e, err = Examine(t.Context(), conn)
		return err
	})
	return e, err
}

// newNode is a node for rules. load replaces those it has, and returns what they are to established connections.
func newNode(t *testing.T) (load func(rules string) *Established) {
	kerneltest.Require(t, rulesOfFirewalls)
	n := newLab(t)
	return func(rules string) *Established {
		t.Helper()
		command := "nft -f -"
		if strings.Contains(rules, "COMMIT") {
			command = "iptables-nft-restore"
		}
		out, err := n.Run(t.Context(), "sh", "-c", "nft flush ruleset; "+command+" <<'END'\n"+rules+"\nEND")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		e, err := examine(t, n)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// TestRecorded holds the table in docs/fastpath.md to the rulesets of other programs.
func TestRecorded(t *testing.T) {
	load := newNode(t)
	docs, err := os.ReadFile("../../docs/fastpath.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recorded {
		text, err := os.ReadFile("testdata/" + r.file)
		if err != nil {
			t.Fatal(err)
		}
		e := load(string(text))
		row := "| " + r.name
		one, two := between{"10.244.1.2:40000", "10.244.1.11:8080", r.pods + "2", r.pods + "1"}, between{"10.244.1.2:40000", "10.244.2.3:8080", r.pods + "2", "eth0"}
		for _, b := range []between{one, two, {"192.0.2.7:40000", "10.244.1.11:8080", "eth0", r.pods + "1"}} {
			what := "yes"
			if e.keeps(b) || e.keeps(b.back()) {
				what = "no"
			}
			row += " | " + what
		}
		row += fmt.Sprintf(" | %s |\n", map[bool]string{true: "yes", false: "no"}[e.Judges])
		if !strings.Contains(string(docs), row) {
			t.Errorf("docs/fastpath.md has no row %s%s\n%+v", row, strings.Join(SkipLines(e.Skips, true), "\n"), e.Ways)
		}
	}
}

// TestKeeps has rules that keep some connections of a node on the slow path, and what they keep.
func TestKeeps(t *testing.T) {
	load := newNode(t)
	const v4, v6 = "10.244.1.2:40000 10.244.1.11:8080 veth1 veth2", "[fd00::2]:40000 [fd00::b]:8080 veth1 veth2"
	for _, c := range []struct{ rules, kept, not string }{
		{"ip daddr 10.244.1.11 limit rate 1/second", "10.0.0.1:1 10.244.1.11:2 a b", "10.244.1.11:2 10.0.0.1:1 a b"},
		{"ip saddr 10.244.1.0/25 meta mark set 1", v4, "10.244.1.200:40000 10.244.1.11:8080 veth1 veth2"},
		{"ip saddr & 255.255.254.0 == 10.244.0.0 meta mark set 1", v4, "10.244.2.2:40000 10.244.1.11:8080 veth1 veth2"},
		{"ip6 daddr fd00::/64 log", v6, v4},
		{"ip daddr != 10.244.1.11 quota 1 bytes", "10.0.0.1:1 10.0.0.2:2 a b", v4},
		{"ip daddr { 10.0.0.0/8, 192.0.2.1, 192.0.2.7-192.0.2.9 } limit rate 1/second", "10.0.0.1:1 192.0.2.9:2 a b", "10.0.0.1:1 192.0.2.10:2 a b"},
		{"ip daddr != { 10.0.0.0/8, 192.0.2.1 } limit rate 1/second", "10.0.0.1:1 192.0.2.9:2 a b", v4},
		{"tcp dport 8000-8100 log", v4, "10.244.1.2:40000 10.244.1.11:7999 veth1 veth2"},
		{"tcp dport >= 8080 log", v4, "10.244.1.2:40000 10.244.1.11:8079 veth1 veth2"},
		{"tcp sport { 1, 40000 } log", v4, "10.244.1.2:40001 10.244.1.11:8080 veth1 veth2"},
		{"iifname veth* oifname veth2 log", v4, "10.244.1.2:40000 10.244.1.11:8080 veth1 veth21"},
		{"oifname veth1 accept; log", v4, "10.244.1.2:40000 10.244.1.11:8080 veth2 veth1"},
		{"oifname veth1 ip daddr 10.9.9.9 accept; log", v4, "10.244.1.2:40000 10.9.9.9:8080 veth2 veth1"},
		{"oifname vmap { veth1 : accept, veth3 : drop }; log", v4, "10.244.1.2:40000 10.9.9.9:8080 veth2 veth3"},
		{"oifname veth2 jump c; log", "10.244.1.2:40000 10.244.1.12:8080 veth1 veth2", v4},
		{"oifname veth2 goto c; log", "10.244.1.2:40000 10.244.1.11:8080 veth1 veth3", v4},
		{"meta length > 100 ip daddr 10.244.1.11 drop", v4, "10.244.1.11:2 10.0.0.1:1 a b"},
		{"meta length > 100 accept; ip daddr 10.244.1.11 drop", v4, "10.244.1.11:2 10.0.0.1:1 a b"},
		{"meta length > 100 return; ip daddr 10.244.1.11 drop", v4, "10.244.1.11:2 10.0.0.1:1 a b"},
		{"meta length > 100 jump c", v4, ""},
		{"meta mark 7 return; oifname veth1 accept; log", "10.244.1.2:40000 10.244.1.11:8080 veth2 veth1", ""},
		{"ip daddr @recent drop", v4, v6},
		{"ip daddr != @lease drop", v4, v6},
		{"ip daddr @lease accept; drop", v4, ""},
		{"ip daddr @lease return; drop", v4, ""},
		{"ip daddr vmap @leases; drop", v4, ""},
		{"ip daddr @lease drop", "", v4},
		{"ip daddr @lease log", v4, "10.0.0.1:1 10.0.0.2:2 a b"},
		{"ip daddr . tcp dport { 10.244.1.11 . 8080 } log", v4, v6},
		{"ct original ip daddr 10.96.0.1 limit rate 1/second", v4, ""},
		{"ip daddr 10.244.1.11 drop", "", v4},
		{"ct mark 1 drop", v4, ""},
		{"ct label 1 drop", v4, ""},
		{"ip daddr @filled drop", v4, v6},
		{"ip daddr @fixed drop", "", v4},
		{"ct state established,related accept; log; limit rate 1/second drop", "", v4},
		{"ct state vmap { established : accept, invalid : drop }; log", "", v4},
		{"counter name c1; counter; meta mark set meta mark and 0xff", "", v4},
		{"ct state new limit rate over 1/second drop", "", v4},
		{"tcp flags syn tcp option maxseg size set rt mtu", "", v4},
		{"tcp flags & (fin|syn|rst|psh|ack|urg) == 0 drop", "", v4},
		{"tcp flags & (fin|psh|urg) == fin|psh|urg drop", "", v4},
		{"ip ttl < 5 drop", v4, ""},
		{"limit name l1", v4, ""},
	} {
		e := load("table inet t {\ncounter c1 { }\nlimit l1 { rate 1/second }\nset recent { type ipv4_addr; flags dynamic; size 9; timeout 1m; }\nset fixed { type ipv4_addr; elements = { 10.244.1.11 }; }\n" +
			"set filled { type ipv4_addr; }\nchain fill { type filter hook input priority 0; add @filled { ip saddr }; }\nset lease { type ipv4_addr; flags timeout; elements = { 10.244.1.11 timeout 1h }; }\nmap leases { type ipv4_addr : verdict; flags timeout; elements = { 10.244.1.11 timeout 1h : accept }; }\n" +
			"chain c { ip daddr 10.244.1.11 drop; }\nchain f { type filter hook forward priority 0;\n" + strings.ReplaceAll(c.rules, "; ", "\n") + "\n}\n}")
		for text, want := range map[string]bool{c.kept: true, c.not: false} {
			var b between
			if n, _ := fmt.Sscan(text, &b.src, &b.dst, &b.in, &b.out); n == 4 && e.keeps(b) != want {
				t.Errorf("%s: keeps %s: %t\n%+v", c.rules, text, !want, e.Ways)
			}
		}
	}
}

// TestKeepsEarly has rules in the hook prerouting, and what they keep.
func TestKeepsEarly(t *testing.T) {
	load := newNode(t)
	const v4, v6 = "10.244.1.2:40000 10.244.1.11:8080 veth1 veth2", "[fd00::2]:40000 [fd00::b]:8080 veth1 veth2"
	for _, c := range []struct{ rules, kept, not string }{
		{"ip saddr 10.244.1.2 limit rate 1/second", v4, v6},
		{"ip saddr 10.244.1.2 meta length > 100 drop", v4, v6},
		{"ip saddr 10.244.1.2 drop", "", v4},
		{"ip ttl set 4", v4, v6},
		{"meta mark set 1", "", v4},
		{"ct mark set 1", "", v4},
		{"meta mark set ct mark", "", v4},
		{"limit rate 1/second meta mark set 1", v4, ""},
		{"meta length > 100 meta mark set 1", v4, ""},
		{"meta length > 100 return; meta mark set 1", v4, ""},
		{"add @recent { ip saddr limit rate 1/second } meta mark set 1", v4, v6},
		{"ct mark 7 meta mark set 1", v4, ""},
		{"ip saddr 10.244.1.2 drop; meta pkttype broadcast drop", "", v6},
		{"ct state established accept; limit rate 1/second", "", v4},
	} {
		e := load("table inet t {\nset recent { type ipv4_addr; flags dynamic; size 9; timeout 1m; }\nchain p { type filter hook prerouting priority -150;\n" + strings.ReplaceAll(c.rules, "; ", "\n") + "\n}\n}")
		for text, want := range map[string]bool{c.kept: true, c.not: false} {
			var b between
			if n, _ := fmt.Sscan(text, &b.src, &b.dst, &b.in, &b.out); n == 4 && e.keeps(b) != want {
				t.Errorf("%s: keeps %s: %t\n%+v", c.rules, text, !want, e.Ways)
			}
		}
		if want := strings.HasPrefix(c.rules, "ip saddr 10.244.1.2 drop"); e.Judges != want {
			t.Errorf("%s: judges %t", c.rules, e.Judges)
		}
	}
}

// TestHash: what rules say and what is in sets changes it, what they count does not.
func TestHash(t *testing.T) {
	load := newNode(t)
	hash := func(rule, set string) uint64 {
		return load("table inet t {\nset s { type ipv4_addr; elements = { " + set + " }; }\nchain f { type filter hook forward priority 0;\n" + rule + "\n}\n}").Hash
	}
	base := hash("ip daddr @s counter packets 1 bytes 100 drop", "10.0.0.1")
	if hash("ip daddr @s counter packets 7 bytes 700 drop", "10.0.0.1") != base {
		t.Error("counters change it")
	}
	if hash("ip daddr @s counter packets 1 bytes 100 drop", "10.0.0.2") == base {
		t.Error("elements do not change it")
	}
	if hash("ip saddr @s counter packets 1 bytes 100 drop", "10.0.0.1") == base {
		t.Error("rules do not change it")
	}
}
