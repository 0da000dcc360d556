// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// stays makes sure that connections are not offloaded although they have many packets more.
func (w *world) stays(all ...*stream) {
	w.t.Helper()
	for range 3 {
		w.goesOn(all...)
	}
	for _, s := range all {
		if _, is := s.flow(); is {
			w.t.Errorf("%v is offloaded", s.to)
		}
	}
}

// TestServiceOptsOut annotates a Service whose connections are offloaded, and has a restart find
// the annotation on another one.
func TestServiceOptsOut(t *testing.T) { engines(t, testServiceOptsOut) }

func testServiceOptsOut(t *testing.T, engine Engine) {
	for _, scope := range []Scope{Services, All} {
		t.Run(fmt.Sprint(scope), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold, Scope: scope})
			out := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)}
			others := []*stream{w.stream(lab.TCP, other, false), w.stream(lab.UDP, other, true)}
			w.fast(out...)
			w.fast(others...)
			w.annotate(web, "off")
			w.apply()
			w.stays(out...)
			w.stays(w.stream(lab.TCP, web, true))
			w.fast(others...)
			w.check(w.Check(t.Context()))

			w.annotate(web, "")
			w.apply()
			w.fast(out...)
			w.fast(others...)

			// The table and its flows are still there for the next run.
			w.stop()
			w.check(w.Close())
			w.annotate(other, "off")
			w.start(Config{Engine: engine, Threshold: threshold, Scope: scope})
			w.stays(others...)
			w.fast(out...)
			w.check(w.Check(t.Context()))
			w.unharmed(out...)
			w.unharmed(others...)
		})
	}
}

// TestPodOptsOut annotates the client or the backend of connections that are offloaded, and their
// Namespace, and has a restart find the annotation.
func TestPodOptsOut(t *testing.T) { engines(t, testPodOptsOut) }

func testPodOptsOut(t *testing.T, engine Engine) {
	for _, scope := range []Scope{Services, All} {
		t.Run(fmt.Sprint(scope), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold, Scope: scope})
			w.endpoints(other, w.web[1])
			w.apply()
			toWeb := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)}
			toOther := []*stream{w.stream(lab.UDP, other, false), w.stream(lab.TCP, other, true)}
			between := []*stream{w.streamFrom(w.web[0], lab.TCP, other, false, interval), w.streamFrom(w.web[0], lab.UDP, other, true, interval)}
			w.fast(toWeb...)
			w.fast(toOther...)
			w.fast(between...)
			steps := []struct {
				what       string
				do         func()
				slow, fast [][]*stream
			}{
				{"web as a client and a backend", func() { w.annotatePod(w.web[0], "off") }, [][]*stream{toWeb, between}, [][]*stream{toOther}},
				{"the client as well", func() { w.annotatePod(w.client, "off") }, [][]*stream{toWeb, toOther, between}, nil},
				{"only the client", func() { w.annotatePod(w.web[0], "on") }, [][]*stream{toWeb, toOther}, [][]*stream{between}},
				{"none", func() { w.state.DeletePod("default", w.client.Name()) }, nil, [][]*stream{toWeb, toOther, between}},
				{"all pods of the Namespace and its Services", func() { w.annotateNamespace("off") }, [][]*stream{toWeb, toOther, between}, nil},
				{"none again", func() { w.annotateNamespace("") }, nil, [][]*stream{toWeb, toOther, between}},
			}
			for _, s := range steps {
				t.Log(s.what)
				s.do()
				w.apply()
				w.stays(slices.Concat(s.slow...)...)
				w.fast(slices.Concat(s.fast...)...)
				w.check(w.Check(t.Context()))
			}
			w.annotatePod(w.client, "off")
			w.apply()
			w.stays(w.stream(lab.TCP, web, true))
			w.annotatePod(w.client, "on")
			w.apply()
			w.fast(toWeb...)

			// The table and its flows are still there for the next run.
			w.stop()
			w.check(w.Close())
			w.annotatePod(w.web[0], "off")
			w.start(Config{Engine: engine, Threshold: threshold, Scope: scope})
			w.stays(toWeb...)
			w.stays(between...)
			w.fast(toOther...)
			w.check(w.Check(t.Context()))
			w.unharmed(slices.Concat(toWeb, toOther, between)...)
		})
	}
}

// TestExclude marks packets of some connections by rules of another program, each in one
// direction or by a connection mark, and excludes one of the clients. All were offloaded
// before.
func TestExclude(t *testing.T) { engines(t, testExclude) }

func testExclude(t *testing.T, engine Engine) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	for _, scope := range []Scope{Services, All} {
		t.Run(fmt.Sprint(scope), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold, Scope: scope})
			inPool := w.newPod(w.node, "in-pool", 200)
			w.interfaces(5)
			excluded := []*stream{
				w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true), w.stream(lab.UDP, web, false), w.stream(lab.TCP, web, true),
				w.streamFrom(inPool, lab.TCP, other, false, interval),
			}
			others := []*stream{w.stream(lab.TCP, other, false), w.stream(lab.UDP, other, true)}
			w.fast(excluded...)
			w.fast(others...)
			rules := "add table inet marks; add chain inet marks forward { type filter hook forward priority mangle; };"
			for i, statement := range []string{
				"ct direction reply meta mark set 0x123", "ct direction original ip6 dscp set 46", "ct direction reply ip dscp set 8", "ct mark set 0x7",
			} {
				to := excluded[i].to
				match := "ip"
				if to.Addr().Is6() {
					match = "ip6"
				}
				rules += fmt.Sprintf("add rule inet marks forward ct original %s daddr %s meta l4proto %s %s;", match, to.Addr(), to.Protocol, statement)
			}
			w.nft(rules + "add rule inet marks forward ct original ip daddr 10.96.0.20 meta mark set 0x113")
			w.stop()
			w.check(w.Close())
			c := Config{Engine: engine, Threshold: threshold, Scope: scope, Bypass: BypassAll, Exclude: Exclude{
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.192/26"), netip.MustParsePrefix("10.244.1.200/32"), netip.MustParsePrefix("fd00:7::/64")},
				Marks:     []Mark{{0x20, 0x20}, {0x7, ^uint32(0)}},
				DSCP:      []uint8{46, 8},
			}}
			w.start(c)
			w.stays(excluded...)
			w.fast(others...)
			w.check(w.Check(t.Context()))
			w.unharmed(excluded...)
			w.unharmed(others...)
			w.stop()
			for _, s := range append(excluded, others...) {
				w.check(s.Close())
			}
			// As text, it can be loaded again.
			w.nft("flush set inet " + TableName + " " + remembered.Name)
			saved := dataplanetest.ReloadRuleset(t, w.node.Namespace, "nft", "")
			dataplanetest.SameRuleset(t, w.node.Namespace, "nft", saved)
		})
	}
}

// TestParse has values of the configuration, and mistakes in them.
func TestParse(t *testing.T) {
	for text, want := range map[string]Mark{
		"0x10/0xf0": {0x10, 0xf0}, "16": {16, ^uint32(0)}, "0/1": {0, 1},
		"": {}, "x": {}, "1/0": {}, "0x10/0x1": {}, "1/2/3": {}, "0x100000000": {}, "-1": {},
	} {
		if m, err := ParseMark(text); err == nil && m != want || (err != nil) != (want == Mark{}) {
			t.Errorf("mark %q: %+v, %v", text, m, err)
		}
	}
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/24": "10.1.2.0/24", "fd00::1": "fd00::1/128", "::ffff:10.0.0.1": "10.0.0.1/32",
		"": "", "10.0.0.0/33": "", "::ffff:10.0.0.0/104": "",
	} {
		if p, err := ParsePrefix(text); err == nil && p.String() != want || (err != nil) != (want == "") {
			t.Errorf("range %q: %s, %v", text, p, err)
		}
	}
}
