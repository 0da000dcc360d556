// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Offsets in the values of the map.
const (
	sealAt    = 128
	checkedAt = 136
	inAt      = 80
	ackAt     = 160
	limitAt   = 164
)

// seal seals a value, as the program does.
func seal(value []byte) {
	const factor = 0x9e3779b97f4a7c15
	var sum [4]uint64
	for i := range sealAt / 8 {
		sum[i%4] = (sum[i%4] + binary.NativeEndian.Uint64(value[i*8:])) * factor
	}
	binary.NativeEndian.PutUint64(value[sealAt:], ((sum[0]*factor+sum[1])*factor+sum[2])*factor+sum[3])
}

// pinned opens the map of flows.
func (w *world) pinned() *ebpf.Map {
	w.t.Helper()
	flows, err := ebpf.LoadPinnedMap(w.pins()+"/flows", nil)
	w.check(err)
	w.t.Cleanup(func() { flows.Close() })
	return flows
}

// flowFrom returns the element of packets from an address.
func (w *world) flowFrom(flows *ebpf.Map, from netip.AddrPort) (key, value []byte) {
	w.t.Helper()
	for i := flows.Iterate(); i.Next(&key, &value); {
		if bytes.HasPrefix(key, from.Addr().AsSlice()) && binary.BigEndian.Uint16(key[32:]) == from.Port() {
			return bytes.Clone(key), bytes.Clone(value)
		}
	}
	w.t.Fatalf("no flow from %v", from)
	return nil, nil
}

// TestEBPFTorn puts a flow into the map as a processor may see it that reads while another one writes: with the key of one
// connection and the destination of another. It must not be used.
func TestEBPFTorn(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.stop() // nothing else changes the map
	flows := w.pinned()
	key, value := w.flowFrom(flows, s.Stats().Source)
	copy(value[56:], w.web[1].Addr(false).AsSlice())
	w.watchSlowPath()
	w.check(flows.Put(key, value))
	w.goesOn(s)
	if original, _ := w.slowPackets(); original < 10 {
		t.Errorf("%d packets went the slow path", original)
	}
	w.unharmed(s)
}

// TestEBPFReuse has two connections take turns in the map, while packets of the first pass. The kernel may
// reuse an element at once. No packet may be delivered to the pod of the second connection.
func TestEBPFReuse(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("NOT RUN: needs two processors")
	}
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	source := s.Stats().Source
	w.check(s.Close())
	w.stop() // nothing else changes the map
	flows := w.pinned()

	// Offsets in the value, which begins with the key and the addresses after translation.
	const toAt, destinationAt, portsAt, outAt, port = 40, 56, 72, 84, 9999
	key, value := w.flowFrom(flows, source)
	binary.NativeEndian.PutUint64(value[checkedAt:], 0) // the program checks each packet, which takes a while
	otherKey, otherValue := bytes.Clone(key), bytes.Clone(value)
	elsewhere := netip.MustParseAddr("192.0.2.1")
	copy(otherKey, elsewhere.AsSlice())
	copy(otherValue, otherKey)
	copy(otherValue[toAt:], elsewhere.AsSlice())
	copy(otherValue[destinationAt:], w.web[1].Addr(false).AsSlice())
	binary.BigEndian.PutUint16(otherValue[portsAt+2:], port)
	l, err := w.links.LinkByName(w.web[1].NodeLink())
	w.check(err)
	binary.NativeEndian.PutUint32(otherValue[outAt:], uint32(l.Attrs().Index))
	seal(otherValue)

	var victim, sender *net.UDPConn
	w.check(w.web[1].Do(func() (err error) { victim, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); return err }))
	defer victim.Close()
	w.check(w.client.Do(func() (err error) {
		sender, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(source), net.UDPAddrFromAddrPort(s.to.AddrPort))
		return err
	}))
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stop.Load() {
			_, _ = sender.Write([]byte("of the first")) // also after an ICMP error
		}
	}()
	defer func() { stop.Store(true); <-ended; sender.Close() }()
	for range 150 {
		for range 5000 {
			_ = flows.Delete(key)
			_ = flows.Put(otherKey, otherValue)
			_ = flows.Delete(otherKey)
			w.check(flows.Put(key, value))
		}
		w.check(victim.SetReadDeadline(time.Now().Add(time.Millisecond)))
		var buffer [100]byte
		if n, err := victim.Read(buffer[:]); err == nil {
			t.Fatalf("%q has arrived at the other pod", buffer[:n])
		}
	}
}
