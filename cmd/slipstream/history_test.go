// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

var (
	historyFor  = flag.Duration("history", 6*time.Second, "how long TestHistory goes on in each case")
	historySeed = flag.Uint64("history-seed", 0, "seed of what TestHistory does; 0 takes one of the clock")
)

// TestHistory changes endpoints all the time, kills the proxy, lets other programs delete its rules, changes the node's
// addresses and the proxy's mode, in a random order. Clients connect meanwhile, and history.judge judges all that they saw. make soak
// goes on for hours.
func TestHistory(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	seed := *historySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-history-seed %d", seed)
	for _, c := range []struct {
		name  string
		modes []string // that it changes between
		flags []string
		needs []kerneltest.Feature
	}{
		{"nftables", []string{config.NFTables}, nil, nil},
		{"fast path", []string{config.NFTables}, []string{"--fast-path-engine", "auto"}, nil},
		{"sockets", []string{config.NFTables}, []string{"--socket-load-balancing", "tcp"}, []kerneltest.Feature{kerneltest.CGroupBPF}},
		{"iptables", []string{config.IPTables}, nil, []kerneltest.Feature{kerneltest.IPTablesNFT, kerneltest.IPSet}},
		{"modes", []string{config.NFTables, config.IPTables}, nil, []kerneltest.Feature{kerneltest.IPTablesNFT, kerneltest.IPSet}},
		{"ipvs", []string{config.IPVS}, nil, []kerneltest.Feature{kerneltest.IPVS, kerneltest.IPSet}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kerneltest.Require(t, c.needs...)
			if user := kerneltest.OwnClock.Probe() == nil; user && (c.name != "ipvs" && c.name != "fast path" || strings.HasPrefix(kerneltest.Kernel(), "6.1.")) {
				t.Skip("runs on the host, or on a newer kernel")
			}
			s := newSite(t)
			if c.name == "sockets" {
				kerneltest.CGroup(t)
				t.Cleanup(func() { s.check(socket.Remove(s.node.FD())) })
			}
			x := &historian{
				crashes: &crashes{site: s, socket: socketPath(t)}, modes: c.modes, flags: c.flags, random: rand.New(rand.NewPCG(seed, 0)),
				history: history{stays: map[string][]*stay{}, last: map[string]attempt{}}, did: map[string]int{}, seen: map[string]int{},
			}
			x.crashes.mode = c.modes[0]
			x.live(*historyFor)
		})
	}
}

// historian makes a history.
type historian struct {
	*crashes
	modes      []string
	flags      []string
	random     *rand.Rand
	proxy      *lab.Process
	up         func()      // ends a gap in history.downs
	api        *historyAPI // nil for a directory of manifests
	generation int         // as many Services without endpoints as its remainder, which tells it from those before
	serving    map[string][]int
	port       uint16 // of the last attempt to sticky

	answeredLate time.Time // when lateAnswer last saw one

	mu       sync.Mutex // for the rest
	history  history
	attempts []attempt
	did      map[string]int // steps, by what they do
	steps    []string
	seen     map[string]int // attempts, by Service and outcome
}

// historyOthers keeps conntrack and translation in the kernel while the proxy has no rules. Without any, it would translate no
// packets of established connections.
const historyOthers = "table inet other { chain c { type filter hook forward priority 0; ct state new accept; }; chain n { type nat hook prerouting priority 50; }; chain p { type nat hook postrouting priority 90; }; }"

const historyNode = "192.168.100.11"

// historyServices have the frontends where clients connect.
var historyServices = map[string]netip.AddrPort{
	"web": netip.MustParseAddrPort("10.96.0.10:80"), "sticky": netip.MustParseAddrPort("10.96.0.11:80"),
	"udp": netip.MustParseAddrPort("10.96.0.12:80"), "steady": netip.MustParseAddrPort(historyNode + ":30080"),
}

func (x *historian) live(d time.Duration) {
	x.serving = map[string][]int{"web": {0, 1}, "sticky": {0, 1, 2}, "udp": {1}, "steady": {2}}
	_, err := x.node.Run(x.t.Context(), "nft", historyOthers)
	x.check(err)
	if *historyTools != "" {
		x.startAPI()
	}
	x.write()
	x.start()
	x.acknowledged()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for service, to := range historyServices {
		clients.Go(func() {
			for ; ; time.Sleep(4 * time.Millisecond) {
				select {
				case <-stop:
					return
				default:
					x.attempt(service, to)
				}
			}
		})
	}
	stream, err := x.client.Stream(lab.TCP, historyServices["steady"], 2*time.Millisecond, lab.Timeout(patience))
	x.check(err)
	for end := time.Now().Add(d); time.Now().Before(end) && !x.t.Failed(); x.judge() {
		x.step()
		if s := stream.Stats(); x.mode != config.IPVS && s.Ended {
			x.t.Errorf("after %v: a connection to an endpoint that never left ended: %+v", x.steps[max(0, len(x.steps)-5):], s)
		}
	}
	close(stop)
	clients.Wait()
	x.judge()
	x.check(stream.Close())
	if out, err := x.verify(x.args()...); err != nil || !allTheSame.MatchString(out) {
		x.t.Errorf("verify: %v\n%s", err, out)
	}
	x.t.Logf("%d generations; steps %v; attempts %v", x.generation, x.did, x.seen)
	for service := range historyServices {
		if x.seen[service+" ok"] == 0 {
			x.t.Errorf("no client has reached %s", service)
		}
	}
}

// attempt makes a connection, or sends a datagram of the one flow to a Service of UDP.
func (x *historian) attempt(service string, to netip.AddrPort) {
	a := attempt{service: service, begin: time.Now()}
	var r lab.Reply
	if service == "udp" {
		from := netip.AddrPortFrom(x.client.Addrs()[0], 5353)
		r, a.err = x.client.Connect(lab.UDP, to, lab.Source(from), lab.Timeout(time.Second))
	} else {
		options := []lab.ConnectOption{lab.Timeout(10 * time.Second)}
		if service == "sticky" { // IPVS sends a port that is used again, within 10 s after a reset, to the former endpoint
			x.port = x.port%20000 + 1
			options = append(options, lab.Source(netip.AddrPortFrom(x.client.Addrs()[0], 20000+x.port)))
		}
		r, a.err = x.client.Connect(lab.TCP, to, options...)
	}
	if errors.Is(a.err, unix.EADDRINUSE) {
		return // the last socket is not closed yet
	}
	a.server, a.end = r.Server, time.Now()
	late := service == "udp" && a.err != nil && x.mode == config.IPVS && x.lateAnswer(a.begin)
	x.mu.Lock()
	defer x.mu.Unlock()
	if late {
		x.seen["udp lost to a late answer"]++
		return
	}
	x.attempts = append(x.attempts, a)
}

// lateAnswer reports whether conntrack takes a late answer of the endpoint that IPVS has chosen for the flow of UDP for a flow
// of its own, or did after begin, as in TestLateAnswer.
func (x *historian) lateAnswer(begin time.Time) bool {
	out, err := x.node.Run(x.t.Context(), "sh", "-c", `for to in $(ipvsadm -Lcn | awk '$1 == "UDP" && $4 ~ /:5353$/ { sub(/:.*/, "", $6); print $6 }'); do
		conntrack -L -p udp -s $to --orig-port-src 8080 --orig-port-dst 5353 2>/dev/null; done`)
	if err == nil && strings.Contains(string(out), "[UNREPLIED]") {
		x.answeredLate = time.Now()
	}
	return x.answeredLate.After(begin.Add(-2 * time.Second))
}

// judge judges the attempts that have ended.
func (x *historian) judge() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.attempts {
		outcome := " ok"
		if a.err != nil {
			outcome = " failed"
		}
		x.seen[a.service+outcome]++
		if wrong := x.history.judge(a); wrong != "" {
			x.t.Errorf("generation %d, after %v: %s (from %s, for %v)", x.generation, x.steps[max(0, len(x.steps)-5):], wrong, a.begin.Format("15:04:05.000"), a.end.Sub(a.begin))
		}
	}
	x.attempts = nil
	x.history.forget(time.Now())
}

func (x *historian) start() {
	x.proxy = x.runs(false, append([]string{"--status-socket", x.socket}, x.args()...)...)
}

// args are for the proxy and for verify.
func (x *historian) args() []string {
	return append([]string{"--proxy-mode", x.mode, "--nodeport-addresses", "192.168.100.0/24"}, x.flags...)
}

func (x *historian) kill() {
	x.up = x.during(&x.history.downs)
	x.proxy.Kill()
	<-x.proxy.Done()
}

// write writes the next generation, and records it.
func (x *historian) write() {
	x.generation++
	x.record()
	var all strings.Builder
	serving := 0
	for service, servers := range x.serving {
		serving += len(servers)
		spec, protocol, endpoints := "", "TCP", []string{}
		switch service {
		case "udp":
			protocol = "UDP"
		case "sticky":
			spec = "sessionAffinity: ClientIP, "
		}
		port := "port: 80, name: a"
		if service == "steady" {
			spec, port = "type: NodePort, ", "port: 80, name: a, nodePort: 30080"
		}
		for _, i := range servers {
			endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.244.1.%d], nodeName: n1}", 10+i))
		}
		ip := historyServices[service].Addr().String()
		if service == "steady" {
			ip = "10.96.0.13"
		}
		annotations := []string{"", `, annotations: {slipstream.io/outlier-detection: "on"}`, ", annotations: {slipstream.io/outlier-detection: report}"}[x.generation/4%3]
		fmt.Fprintf(&all, `---
{apiVersion: v1, kind: Service, metadata: {name: %[1]s%[7]s}, spec: {%[2]sclusterIP: %[3]s, ports: [{%[4]s, targetPort: 8080, protocol: %[5]s}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4, ports: [{name: a, port: 8080, protocol: %[5]s}], endpoints: [%[6]s]}
`, service, spec, ip, port, protocol, strings.Join(endpoints, ", "), annotations)
	}
	if x.api != nil { // which has Services and endpoints in different streams
		all.WriteString("---\n{apiVersion: v1, kind: Service, metadata: {name: mark}, spec: {clusterIP: 10.96.1.1, ports: [{port: 80, name: a, targetPort: 8080}]}}\n")
		all.WriteString("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: mark, labels: {kubernetes.io/service-name: mark}}, addressType: IPv4, ports: [{name: a, port: 8080}], endpoints: [")
		for i := range x.endpoints() - serving {
			fmt.Fprintf(&all, "{addresses: [10.245.0.%d]},", 1+i)
		}
		all.WriteString("]}\n")
		x.api.write(all.String())
		return
	}
	for i := range x.generation % 7 {
		fmt.Fprintf(&all, "---\n{apiVersion: v1, kind: Service, metadata: {name: mark-%d}, spec: {clusterIP: 10.96.1.%d, ports: [{port: 80}]}}\n", i, i+1)
	}
	x.save("all.yaml", all.String())
}

// endpoints is how many there are in an API server's generation, which tells it from those before.
func (x *historian) endpoints() int { return 20 + x.generation%50 }

// record records what Services are to have.
func (x *historian) record() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for service, servers := range x.serving {
		names := []string{}
		for _, i := range servers {
			names = append(names, fmt.Sprint("web-", i))
		}
		x.history.set(service, names, time.Now())
	}
}

// acknowledged waits until the proxy has programmed the last generation.
func (x *historian) acknowledged() {
	x.t.Helper()
	x.until("the last generation is programmed", func() bool {
		if x.api != nil {
			return x.synced(len(historyServices)+2, x.endpoints()) // mark and kubernetes, too
		}
		return x.synced(len(historyServices)+x.generation%7, -1)
	})
	if x.up != nil {
		x.up()
		x.up = nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.history.acknowledge(time.Now())
}

// roll gives the Services other endpoints.
func (x *historian) roll() {
	for service, least := range map[string]int{"web": 0, "sticky": 1, "udp": 0} {
		some := x.random.Perm(3)
		x.serving[service] = some[:least+x.random.IntN(4-least)]
	}
	x.write()
}

// step does one thing.
func (x *historian) step() {
	steps := []string{"roll", "roll", "roll", "roll", "roll twice", "kill", "kill while it changes", "delete the rules", "addresses", "mode", "rest"}
	if x.api != nil {
		steps = append(steps, "kill the API server", "restore the API server")
	}
	do := steps[x.random.IntN(len(steps))]
	if do == "mode" && len(x.modes) == 1 {
		do = "kill"
	}
	x.did[do]++
	x.steps = append(x.steps, do)
	switch do {
	case "roll twice":
		x.roll()
	case "kill while it changes":
		x.roll()
		time.Sleep(time.Duration(x.random.IntN(20)) * time.Millisecond)
		fallthrough
	case "kill":
		x.kill()
		x.start()
	case "rest": // longer than flows may be late
		time.Sleep(4 * time.Second)
		return
	case "delete the rules":
		x.disturb()
		return
	case "kill the API server", "restore the API server":
		x.api.fail(do)
	case "addresses":
		_, err := x.node.Run(x.t.Context(), "sh", "-c", "ip addr add 192.168.100.77/24 dev eth0 2>/dev/null || ip addr del 192.168.100.77/24 dev eth0")
		x.check(err)
	case "mode":
		x.mode = map[string]string{config.NFTables: config.IPTables, config.IPTables: config.NFTables}[x.mode]
		x.kill()
		defer x.during(&x.history.forgotten)()
		x.start()
		x.roll()
		x.until("the former mode's rules are gone", func() bool { return !x.hasFormer() }) // only then are changes in effect
		x.acknowledged()
		return
	}
	x.roll()
	x.acknowledged()
}

// disturb deletes rules as another program would, and waits until they are back.
func (x *historian) disturb() {
	defer x.during(&x.history.gaps)()
	defer x.during(&x.history.forgotten)()
	x.shell(map[string]string{
		config.NFTables: "nft delete table ip slipstream", config.IPTables: "iptables-nft -t nat -F", config.IPVS: "ipvsadm -C",
	}[x.mode])
	x.until("the rules are back", func() bool {
		out, err := x.verify(x.args()...)
		return err == nil && allTheSame.MatchString(out)
	})
}

// during records a gap that goes on until its result is called.
func (x *historian) during(all *[]gap) (end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	*all = append(*all, gap{from: time.Now()})
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		(*all)[len(*all)-1].to = time.Now()
	}
}

// TestLateAnswer has what is left when an endpoint answers after IPVS has forgotten the connection, as when its destination is
// deleted: conntrack has a flow from the endpoint to the client. NAT rules give a client's next flow to that endpoint another
// port; IPVS does not, and its datagrams are dropped as long as the kernel has the entry, half a minute. On Linux 6.1 they are
// answered.
func TestLateAnswer(t *testing.T) {
	for _, mode := range []string{config.NFTables, config.IPVS} {
		t.Run(mode, func(t *testing.T) {
			if mode == config.IPVS {
				kerneltest.Require(t, kerneltest.IPVS)
			}
			s := newSite(t)
			c := &crashes{site: s, socket: socketPath(t), mode: mode}
			s.save("web.yaml", strings.NewReplacer("port: 80,", "port: 80, protocol: UDP,", "port: 8080}", "port: 8080, protocol: UDP}").Replace(web(0)))
			c.runs(false, "--proxy-mode", mode, "--status-socket", c.socket)
			s.until("it has programmed", func() bool { return c.synced(1, 1) })
			client, server := s.client.Addrs()[0], s.servers[0].Addrs()[0]
			send := func() error {
				_, err := s.client.Connect(lab.UDP, webAddr, lab.Source(netip.AddrPortFrom(client, 5353)), lab.Timeout(2*time.Second))
				return err
			}
			entry := fmt.Sprintf(" -p udp -s %[1]s -d %[2]s --sport 8080 --dport 5353", server, client)
			s.shell("conntrack -I" + entry + fmt.Sprintf(" -r %[2]s -q %[1]s --reply-port-src 5353 --reply-port-dst 8080 --src-nat %[1]s -t 60", server, client))
			if err := send(); (err == nil) != (mode == config.NFTables || strings.HasPrefix(kerneltest.Kernel(), "6.1.")) {
				t.Errorf("beside a late answer: %v", err)
			}
			s.shell("conntrack -D" + entry)
			s.until("datagrams are answered", func() bool { return send() == nil })
		})
	}
}
