// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestPortReuse has a client use a port again, after a connection was reset or closed, while its
// endpoint stays, drains or is deleted. IPVS drops no SYN for it, which would delay the client by a
// second (kubernetes #81775), and the client does not come to an endpoint that has left.
func TestPortReuse(t *testing.T) {
	s := newStreet(t, 2, Options{})
	// Otherwise the client's own TIME_WAIT keeps the port.
	if err := s.Client.SetSysctl("ipv4/tcp_max_tw_buckets", "0"); err != nil {
		t.Fatal(err)
	}
	const syn = "tcp flags & (syn | ack) == syn counter"
	for _, c := range []string{
		"add table ip watch",
		"add chain ip watch arrive { type filter hook prerouting priority -400; }",
		"add chain ip watch leave { type filter hook postrouting priority 400; }",
		"add rule ip watch arrive ip daddr 10.96.0.1 " + syn,
		"add rule ip watch leave ip daddr 10.244.1.3 " + syn,
	} {
		if out, err := s.Node.Run(t.Context(), "nft", c); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// syns counts those that arrive for the Service and those that leave for an endpoint.
	syns := func() string {
		out, err := s.Node.Run(t.Context(), "nft", "list", "table", "ip", "watch")
		if err != nil {
			t.Fatal(err)
		}
		var n []string
		for line := range strings.Lines(string(out)) {
			if _, counter, ok := strings.Cut(line, "counter packets "); ok {
				n = append(n, strings.Fields(counter)[0])
			}
		}
		return strings.Join(n, " and ")
	}
	port := uint16(10_000)
	for _, closed := range []bool{false, true} {
		for _, endpoint := range []string{"stays", "drains", "is deleted"} {
			t.Run(fmt.Sprintf("closed=%t/endpoint %s", closed, endpoint), func(t *testing.T) {
				s.T = t
				port++
				from := lab.Source(netip.AddrPortFrom(s.Client.Addr(false), port))
				var used uint16
				if closed {
					stream, err := s.Client.Stream(lab.TCP, web, time.Hour, from, lab.Timeout(20*time.Second))
					if err != nil {
						t.Fatal(err)
					}
					used = stream.Stats().Local.Port()
					for end := time.Now().Add(20 * time.Second); stream.Stats().Received == 0 && time.Now().Before(end); {
						time.Sleep(time.Millisecond) // what is not read turns a FIN into a reset
					}
					stream.Close()
					s.ended(port)
				} else {
					for used = range s.hits(1, from) {
					}
					s.ended(port)
				}
				if endpoint != "stays" {
					s.remove(used)
					defer s.restore(used)
				}
				if endpoint == "is deleted" {
					s.expire()
				}
				for again := range s.hits(1, from) {
					t.Logf("port %d, then %d; %s SYNs", used, again, syns())
					if again == used && endpoint != "stays" {
						t.Errorf("the client comes to port %d again, which has left", used)
					}
				}
			})
		}
	}
	if arrived, left, _ := strings.Cut(syns(), " and "); arrived == "0" || arrived != left {
		t.Errorf("%s SYNs have arrived and %s have left", arrived, left)
	}
}

// ended waits until IPVS has seen the end of the connection of a client's port. That of one that
// was closed can also be a reset, as the client has no TIME_WAIT: if the server closes later.
func (s *street) ended(port uint16) {
	s.Helper()
	var out []byte
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		if out, err = s.Node.Run(s.Context(), "ipvsadm", "-Lnc"); err != nil {
			s.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if w := strings.Fields(line); len(w) > 3 && (w[2] == "TIME_WAIT" || w[2] == "CLOSE") && strings.HasSuffix(w[3], fmt.Sprint(":", port)) {
				return
			}
		}
	}
	s.Fatalf("the connection of port %d goes on:\n%s", port, out)
}

// expire ends the time of all destinations that drain.
func (s *street) expire() {
	s.Helper()
	for len(s.backend.drain) > 0 {
		for _, drains := range s.backend.drain {
			for to := range drains {
				drains[to] = true
			}
		}
		if err := s.backend.Check(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
}
