// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// traffic asks for the traffic of Services by name.
func (s *site) traffic(socket string) map[string]see.Traffic {
	s.t.Helper()
	out, status := s.see("services", "--socket", socket, "-o", "json")
	var all []see.Service
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 0 {
		s.t.Fatalf("exit status %d, %v: %s", status, err, out)
	}
	byName := map[string]see.Traffic{}
	for i := range all {
		byName[all[i].Name] = all[i].Sum()
	}
	return byName
}

var datagramsAddr = netip.MustParseAddrPort("10.96.0.30:80")

// TestTraffic compares what a client sends and receives with what is counted.
func TestTraffic(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	account := func(value string) {
		if out, err := s.node.Run(t.Context(), "sh", "-c", "echo "+value+" > /proc/sys/net/netfilter/nf_conntrack_acct"); err != nil {
			t.Fatal(err, string(out))
		}
	}
	datagrams := func(servers ...int) string {
		return strings.NewReplacer("name: web", "name: datagrams", "10.96.0.10", "10.96.0.30").Replace(udp(servers...))
	}
	s.save("web.yaml", web(0, 1))
	s.save("datagrams.yaml", datagrams(0, 1, 2))
	s.run("--status-socket", socket, "--metrics-bind-address", "127.0.0.1:10249", "--service-metrics")
	s.untilReached("web-0", "web-1")
	account("0") // rules of the fast path have turned it on
	if out, _ := s.see("services", "--socket", socket, "-o", "wide"); !strings.Contains(out, "nf_conntrack_acct is 0") {
		t.Errorf("accounting is off:\n%s", out)
	}
	account("1")
	before := s.traffic(socket)

	const connections = 200
	load, err := s.client.StartLoad(t.Context(), lab.TCP, webAddr, lab.LoadOptions{Workers: 4, Count: connections, Connect: []lab.ConnectOption{lab.Timeout(patience)}})
	s.check(err)
	if stats := load.Wait(); stats.OK != connections {
		t.Fatal(stats)
	}
	const clients, headers = 100, 20 + 8
	var sent uint64
	message, answer := bytes.Repeat([]byte("x"), 1000), make([]byte, 2000)
	message[len(message)-1] = '\n'
	for i := range clients { // sockets stay open, as a port that is used again continues a connection
		c, err := s.client.DialContext(t.Context(), "udp4", datagramsAddr.String())
		s.check(err)
		defer c.Close()
		s.check(c.SetDeadline(time.Now().Add(patience)))
		for range 3 {
			_, err := c.Write(message)
			s.check(err)
			n, err := c.Read(answer)
			s.check(err)
			sent += uint64(len(message) + n + 2*headers)
		}
		if i == clients/2 { // the others end before the next question
			if now := s.traffic(socket)["datagrams"].Connections; now == 0 || now > i+1 {
				t.Errorf("%d connections now", now)
			}
		}
	}
	s.save("datagrams.yaml", datagrams()) // without endpoints, the entries are deleted
	var table *flows.Conn
	s.check(s.node.Do(func() (err error) { table, err = flows.New(0); return err }))
	defer table.Close()
	s.until("the connections end", func() bool {
		n := 0
		s.check(table.Translated(t.Context(), func(f *flows.Flow) {
			if f.Protocol == desired.UDP {
				n++
			}
		}))
		return n == 0
	})
	equal := func(what string, got uint64, want uint64) {
		t.Helper()
		if got < want || got > want+want/100 {
			t.Errorf("%s: %d, the client counted %d", what, got, want)
		}
	}
	after := s.traffic(socket)
	equal("TCP connections", after["web"].Total.Connections-before["web"].Total.Connections, connections)
	equal("UDP connections", after["datagrams"].Total.Connections, clients)
	equal("packets", after["datagrams"].Total.Packets, 6*clients)
	equal("bytes", after["datagrams"].Total.Bytes, sent)
	if n := after["datagrams"].Connections; n != 0 {
		t.Errorf("%d connections now", n)
	}
	refused := 0
	s.until("the rate of refused packets is known", func() bool {
		_, err := s.client.Connect(lab.UDP, datagramsAddr, lab.Timeout(patience))
		if lab.Outcome(err) != "refused" {
			t.Errorf("without endpoints: %v", err)
		}
		refused++
		after = s.traffic(socket)
		rate := after["datagrams"].RejectedRate
		return rate != nil && *rate > 0 && *rate < 1000
	})
	if n := after["datagrams"].Rejected; n == nil || *n != uint64(refused) {
		t.Errorf("%v packets were refused, not %d", n, refused)
	}
	contains(t, s.metrics(),
		fmt.Sprintf(`slipstream_service_rejected_packets_total{namespace="default",service="datagrams"} %d`, refused)+"\n",
		fmt.Sprintf(`slipstream_service_connections_total{namespace="default",service="datagrams"} %d`, after["datagrams"].Total.Connections)+"\n",
		fmt.Sprintf(`slipstream_service_bytes_total{namespace="default",service="datagrams"} %v`, float64(after["datagrams"].Total.Bytes))+"\n")
	out, _ := s.see("services", "--socket", socket, "--sort", "rejected")
	if lines := strings.Split(out, "\n"); !strings.HasPrefix(lines[1], "default/datagrams ") {
		t.Errorf("the Service with refused packets is not first:\n%s", out)
	}

	s.check(os.Remove(filepath.Join(s.dir, "datagrams.yaml")))
	s.until("the Service is deleted", func() bool { return len(s.traffic(socket)) == 1 })
	s.save("datagrams.yaml", datagrams())
	s.until("another Service has the address", func() bool { return len(s.traffic(socket)) == 2 })
	if n := s.traffic(socket)["datagrams"].Rejected; n == nil || *n != 0 {
		t.Errorf("a new Service begins with %v refused packets", n)
	}
}

// TestSharedWalk checks that the page takes the connections that another question has just counted, and that
// the commands count them again.
func TestSharedWalk(t *testing.T) {
	for _, mode := range []string{config.NFTables, config.IPVS} { // entries of IPVS lack the status DST_NAT
		t.Run(mode, func(t *testing.T) {
			if mode == config.IPVS {
				kerneltest.Require(t, kerneltest.IPVS)
			}
			sharesWalk(t, mode)
		})
	}
}

func sharesWalk(t *testing.T, mode string) {
	s := newSite(t)
	socket := socketPath(t)
	const page = "127.0.0.1:10280"
	s.save("web.yaml", web(0, 1))
	s.run("--proxy-mode", mode, "--status-socket", socket, "--ui-bind-address", page)
	s.untilReached("web-0", "web-1")
	var web see.Service
	onPage := func() int {
		text, err := s.getPage(page, "/data/services/default/web")
		s.check(err)
		web = see.Service{}
		s.check(json.Unmarshal([]byte(text), &web))
		return web.Sum().Connections
	}
	s.traffic(socket)
	s.untilReached("web-0", "web-1")
	s.until("the page knows the rates of endpoints", func() bool {
		s.untilReached("web-0", "web-1")
		onPage()
		return len(web.Traffic[0].EndpointRates) == 2
	})
	s.until("the page does not count again", func() bool {
		before := s.traffic(socket)["web"].Connections
		s.untilReached("web-0", "web-1")
		shown, now := onPage(), s.traffic(socket)["web"].Connections
		if now <= before {
			t.Logf("%d connections, and %d after more of them", before, now) // others may have expired
		}
		return now > before && shown == before
	})
}

// TestTop checks the order of Services, and that a list follows another one.
func TestTop(t *testing.T) {
	s := newSite(t)
	socket := socketPath(t)
	s.save("web.yaml", web(0, 1))
	s.save("datagrams.yaml", strings.NewReplacer("name: web", "name: datagrams", "10.96.0.10", "10.96.0.30").Replace(udp(0)))
	s.save("idle.yaml", strings.NewReplacer("name: web", "name: idle", "10.96.0.10", "10.96.0.31").Replace(web(0)))
	s.run("--status-socket", socket)
	s.untilReached("web-0", "web-1")
	load, err := s.client.StartLoad(t.Context(), lab.TCP, webAddr, lab.LoadOptions{Pace: 20 * time.Millisecond})
	s.check(err)
	defer load.Stop()
	stream, err := s.client.Stream(lab.UDP, datagramsAddr, 50*time.Millisecond, lab.Timeout(patience))
	s.check(err)
	defer stream.Close()

	cmd := s.command("top", "--socket", socket, "--period", "1s")
	var live logBuffer
	cmd.Stdout = &live
	p, err := s.node.Start(cmd)
	s.check(err)
	defer p.Kill()
	s.until("another list follows", func() bool { return strings.Count(live.String(), "2 Services with traffic") >= 2 })
	if contains(t, live.String(), "default/web"); strings.Contains(live.String(), "\x1b") {
		t.Errorf("there are codes of terminals in a pipe:\n%q", live.String())
	}

	out, status := s.see("top", "--socket", socket, "-o", "json", "--period", "1s")
	var all []busy
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 0 || len(all) != 2 {
		t.Fatalf("exit status %d, %v: %s", status, err, out)
	}
	if first := all[0]; first.Service != "default/web" || first.Total.ConnectionRate == nil || *first.Total.ConnectionRate <= 0 {
		t.Errorf("not the Service with new connections is first: %s", out)
	}
	out, status = s.see("top", "--socket", socket, "--once", "--sort", "name", "--period", "1s")
	if lines := strings.Split(out, "\n"); status != 0 || !strings.HasPrefix(lines[2], "default/datagrams ") {
		t.Errorf("exit status %d, not by name:\n%s", status, out)
	}
	for args, want := range map[string]string{"--sort speed": "must be one of byte-rate", "--period 10ms": "at least a second", "-o yaml": "must be one of text, json"} {
		if out, status := s.see(append([]string{"top", "--socket", socket}, strings.Fields(args)...)...); status != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: exit status %d: %s", args, status, out)
		}
	}
}
