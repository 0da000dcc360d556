// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"

	engine "github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// TestEBPFInvalidFlags sends segments with flags that conntrack calls invalid, in an offloaded connection. Rules see them.
func TestEBPFInvalidFlags(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.nft("table inet late { chain c { type filter hook prerouting priority -150; tcp sequence 77 ct state invalid counter; }; }")
	const psh, urg = 0x08, 0x20
	sent := 0
	for _, flags := range []byte{0, psh, urg, fin, fin | psh | urg, fin | rst, fin | rst | ack} {
		w.goesOn(s)
		w.fast(s)
		w.forge(w.client, s.Stats().Source, s.to.AddrPort, flags)
		sent++
		w.goesOn(s)
		if n := w.counted(); n != sent {
			t.Errorf("flags %#x: %d of %d segments are seen", flags, n, sent)
			sent = n
		}
	}
	w.fast(s)
	w.unharmed(s)
}

// TestEBPFRouteByDSCP has a rule of routing by the DSCP value drop the packets of an offloaded connection.
func TestEBPFRouteByDSCP(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	for _, family := range []string{"ip", "ip6"} {
		w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
		s, elsewhere := w.stream(lab.UDP, web, family == "ip6"), w.stream(lab.UDP, web, family != "ip6")
		w.fast(s, elsewhere)
		w.check2(w.client.Run(t.Context(), "nft", "table "+family+" t { chain c { type filter hook output priority 0; "+family+" dscp set 4; }; }"))
		w.goesOn(s)
		w.fast(s)
		if said := w.sh("ip " + map[string]string{"ip": "-4", "ip6": "-6"}[family] + " rule add tos 0x10 blackhole pref 10"); said != "" {
			t.Fatal(said)
		}
		w.dropped(s, elsewhere)
	}
}

// TestEBPFExtensionsLeaseEnded: once the lease has ended, packets with very many extension headers pass, too.
func TestEBPFExtensionsLeaseEnded(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold, lease: 1})
	w.stop()
	w.nft("table inet late { chain c { type filter hook forward priority 0; ip6 saddr fd00:244:1::2 counter; }; }")
	from, to := w.client.Addr(true), w.web[0].Addr(true)
	packet := append([]byte{0x60, 0, 0, 0, 0, 9*8 + 8, unix.IPPROTO_DSTOPTS, 64}, slices.Concat(from.AsSlice(), to.AsSlice())...)
	for n := range 9 {
		next := byte(unix.IPPROTO_DSTOPTS)
		if n == 8 {
			next = unix.IPPROTO_UDP
		}
		packet = append(packet, next, 0, 1, 4, 0, 0, 0, 0)
	}
	packet = append(packet, 0, 9, 0, 9, 0, 8, 0, 0)
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	w.check(w.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: to.As16()})
	}))
	w.until("it passes", func() bool { return w.counted() > 0 })
}

// TestEBPFRemoveUnseen removes programs whose pins are out of sight, as in a container without the node's BPF file system.
func TestEBPFRemoveUnseen(t *testing.T) {
	kerneltest.Require(t, kerneltest.TCX)
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop()
	w.check(w.Close())
	dir := w.pins()
	hidden := dir + "-hidden"
	w.check(os.Rename(dir, hidden))
	t.Cleanup(func() { _ = os.RemoveAll(hidden) })
	if len(w.withProgram("forward")) == 0 {
		t.Fatal("no program is attached")
	}
	w.check(engine.Remove(w.node.FD()))
	if at := w.withProgram("forward"); len(at) > 0 {
		t.Errorf("programs are attached to %v", at)
	}
	w.goesOn(s)
	w.unharmed(s)
}
