// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

func TestShare(t *testing.T) {
	tests := []struct {
		before, after packets
		want          float64
	}{
		{packets{100, 50}, packets{200, 150}, 1},
		{packets{100, 50}, packets{200, 75}, 0.25},
		{packets{100, 50}, packets{100, 50}, 0},
	}
	for _, test := range tests {
		if got := test.before.share(test.after); got != test.want {
			t.Errorf("%v to %v: %v, want %v", test.before, test.after, got, test.want)
		}
	}
}

func TestOffloaded(t *testing.T) {
	for _, test := range []struct {
		threshold uint32
		slow      []float64
		bad       bool
	}{
		{0, []float64{100, 100}, false},
		{20, []float64{0, 50, 1}, false},
		{20, []float64{0, 51, 1}, true},
	} {
		if err := (Setting{Name: "on", Threshold: test.threshold}).offloaded(test.slow); (err != nil) != test.bad {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// A node counts the packets that its stack forwards, and no others.
func TestForwarded(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	n := testNetwork(t)
	count := func() packets {
		p, err := countPackets(n.node.Node, false)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := count()
	err := n.client.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.backend(floodPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		for range 10 {
			if _, err := c.Write([]byte("hello")); err != nil {
				time.Sleep(time.Millisecond) // the answer that the port is closed
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); count().slow-before.slow < 5; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v before, %+v after 10 datagrams", before, count())
		}
	}
	if after := count(); after.slow-before.slow > after.arrived-before.arrived {
		t.Errorf("more were forwarded than arrived: %+v, %+v", before, after)
	}
}
