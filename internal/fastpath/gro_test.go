// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"strings"
	"testing"

	"github.com/safchain/ethtool"
)

// groAt is the alias of an interface of the node, and whether GRO is on there.
func (w *world) groAt(link string) (alias string, on bool) {
	w.t.Helper()
	l, err := w.links.LinkByName(link)
	w.check(err)
	w.check(w.node.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		features, err := e.Features(link)
		on = features[gro]
		return err
	}))
	return l.Attrs().Alias, on
}

// groIs fails the test unless GRO of an interface is as it should be.
func (w *world) groIs(link, alias string, on bool) {
	w.t.Helper()
	if a, is := w.groAt(link); a != alias || is != on {
		w.t.Errorf("%s: alias %q, GRO %t; want %q, %t", link, a, is, alias, on)
	}
}

// TestGRO: GRO is switched on at pods' veths and nowhere else, and what another program has set stays. It is switched off
// after a crash, when the option has gone or the interface does not take part any more, and by a clean-up.
func TestGRO(t *testing.T) { engines(t, testGRO) }

func testGRO(t *testing.T, engine Engine) {
	w := newQuietWorld(t, engine)
	pod, aliased, others := w.client.NodeLink(), w.web[0].NodeLink(), w.web[1].NodeLink()
	w.sh("set -e; ip link set " + aliased + " alias theirs; ip link add own type veth peer name own2; ip link set own up; ip link set own2 up")
	w.check(w.node.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(others, map[string]bool{gro: true})
	}))
	untouched := func() {
		t.Helper()
		w.groIs(aliased, "theirs", false)
		w.groIs(others, "", true)
		w.groIs("own", "", false) // both ends are the node's
	}
	w.start(Config{Engine: engine, Threshold: threshold, GRO: true})
	w.groIs(pod, groAlias, true)
	untouched()
	late := w.newPod(w.node, "late", 20)
	w.until("a new pod has GRO", func() bool { _, on := w.groAt(late.NodeLink()); return on })
	w.sh("ip link set " + late.NodeLink() + " down")
	w.until("one that does not take part any more has none", func() bool { alias, on := w.groAt(late.NodeLink()); return alias == "" && !on })

	w.stop()
	w.check(w.Close()) // what it has programmed stays, as after a crash
	w.groIs(pod, groAlias, true)
	w.start(Config{Engine: engine, Threshold: threshold})
	w.groIs(pod, "", false)
	untouched()

	w.stop()
	w.check(w.Close())
	w.start(Config{Engine: engine, Threshold: threshold, GRO: true})
	w.groIs(pod, groAlias, true)
	w.stop()
	w.check(w.Close())
	off, err := New(Config{NetNS: w.node.FD()})
	w.check(err)
	w.check(off.Stop())
	w.groIs(pod, "", false)
	untouched()
}

// TestGROMerges: segments of a pod without segmentation offload arrive merged at the node's stack, and unharmed at the other pod.
func TestGROMerges(t *testing.T) { engines(t, testGROMerges) }

func testGROMerges(t *testing.T, engine Engine) {
	for _, on := range []bool{false, true} {
		w := newWorld(t, Config{Engine: engine, Threshold: 1 << 30, Scope: All, GRO: on})
		w.plain(w.client)
		w.nft("add table inet sizes; add chain inet sizes prerouting { type filter hook prerouting priority -400; };" +
			"add rule inet sizes prerouting iifname " + w.client.NodeLink() + " meta length > 3000 counter")
		client, server := w.connect(w.web[0], false)
		w.transfer(client, server, 8<<20)
		if none := strings.Contains(w.nft("list table inet sizes"), "counter packets 0 "); none == on {
			t.Errorf("GRO %t: no packet was merged: %t", on, none)
		}
		w.noChecksumErrors(w.client, w.web[0])
	}
}
