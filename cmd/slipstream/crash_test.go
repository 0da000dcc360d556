// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var (
	crashAll  = flag.Bool("crash-all", false, "TestCrash kills before each call of each phase; otherwise before one, of four phases")
	crashFrom = flag.Int("crash-from", 1, "the first of the calls of -crash-all")
	crashTo   = flag.Int("crash-to", 1<<30, "the last of them")
	crashSeed = flag.Uint64("crash-seed", 0, "seed of TestCrash's sample; 0 takes one of the clock")
)

// crashPhase is what a process does when it is killed.
type crashPhase struct {
	name     string
	before   string // the manifest that the kernel has when it begins; "" is none
	former   bool   // another mode of Slipstream has programmed it
	takeOver bool   // kube-proxy's rules are there, too
	after    string // the manifest then
	upgrade  bool   // the former version has programmed it
	rollback bool   // the former version is killed, after this one has programmed it
	cluster  bool   // it has an API server, and takes over from kube-proxy by itself
	running  bool   // the process has programmed what was before
	cleanUp  bool   // the process is cleanup
}

const crashOthers = "table inet other { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; chain c { type filter hook forward priority 0; ip saddr @s accept; }; }"

// crashKubeProxy has rules of kube-proxy for Service default/web, in its nftables mode and in its iptables mode.
var crashKubeProxy = map[string]string{
	config.NFTables: `nft 'table ip kube-proxy { chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.10:8080; }; }'`,
	config.IPTables: `printf '*nat\n:KUBE-SERVICES -\n:KUBE-SVC-AAAAAAAAAAAAAAAA -\n:KUBE-SEP-AAAAAAAAAAAAAAAA -\n-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA\n-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 10.244.1.10:8080\nCOMMIT\n' | iptables-nft-restore --noflush`,
}

// TestCrash kills the command before a state-changing call of one of its threads or of the commands that it starts, and
// after the last; the state after a call is that before the next. After each, one that is started again has the kernel as it should be, and a clean-up leaves nothing. Connections to a
// Service that was there all the time succeed meanwhile, and none reaches an endpoint that was removed before.
func TestCrash(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-crash-seed %d", seed)
	old, changed := web(0, 1), strings.Replace(web(0), "10.96.0.10,", "10.96.0.10, externalIPs: [203.0.113.7],", 1)+"---\n"+padding(2)
	for _, mode := range modeNames() {
		t.Run(mode, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(len(mode))))
			if user := kerneltest.OwnClock.Probe() == nil; user && (mode != config.IPVS || strings.HasPrefix(kerneltest.Kernel(), "6.1.")) {
				t.Skip("runs on the host, or on a newer kernel")
			}
			switch mode {
			case config.IPTables:
				kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
			case config.IPVS:
				kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPSet)
			}
			phases := []crashPhase{
				{name: "start", after: old},
				{name: "restart", before: old, after: changed},
				{name: "change", before: old, after: changed, running: true},
				{name: "another mode", before: old, former: true, after: old},
				{name: "upgrade", before: old, upgrade: true, after: changed},
				{name: "rollback", before: old, rollback: true, after: changed},
				{name: "take-over", takeOver: true, cluster: true, after: old},
				{name: "clean-up", before: old, after: old, cleanUp: true},
				{name: "clean-up of kube-proxy", before: old, takeOver: true, after: old, cleanUp: true},
			}
			if !*crashAll {
				random.Shuffle(len(phases), func(i, j int) { phases[i], phases[j] = phases[j], phases[i] })
				phases = phases[:4]
			}
			for _, p := range phases {
				if p.takeOver && crashKubeProxy[mode] == "" || p.former && mode == config.IPVS {
					continue
				}
				t.Run(p.name, func(t *testing.T) {
					c := &crashes{site: newSite(t), mode: mode, phase: p}
					if p.upgrade || p.rollback {
						get := previous
						if mode == config.IPVS {
							get = builtPrevious
						}
						c.previous = filepath.Join(get(t), "slipstream")
					}
					c.sweep(t, random)
				})
			}
		})
	}
}

// crashes is a node on which processes are killed.
type crashes struct {
	*site
	mode       string
	phase      crashPhase
	socket     string
	previous   string // the former version
	kubeconfig string
	clean      string // what the kernel has after a clean-up
}

// runs starts a proxy, of the former version if that is wanted.
func (c *crashes) runs(former bool, flags ...string) *lab.Process {
	cmd := c.command(append(c.runArgs(), flags...)...)
	if former {
		cmd.Path = c.previous
	}
	p, err := c.node.Start(cmd)
	c.check(err)
	c.t.Cleanup(func() { p.Kill() })
	return p
}

func (c *crashes) runArgs() []string {
	source := []string{"--manifests", c.dir}
	if c.kubeconfig != "" {
		source = []string{"--kubeconfig", c.kubeconfig}
	}
	return append(append([]string{"run"}, source...), "--hostname-override", "n1", "-v", "2")
}

// serveAPI serves a manifest to programs on the node as an API server would, and changes nothing.
func (c *crashes) serveAPI(manifest string) {
	lists := map[string][]json.RawMessage{"nodes": {json.RawMessage(`{"metadata": {"name": "n1", "resourceVersion": "1"}}`)}}
	for document := range strings.SplitSeq(manifest, "---\n") {
		raw, err := yaml.YAMLToJSON([]byte(document))
		c.check(err)
		var o metav1.PartialObjectMetadata
		c.check(json.Unmarshal(raw, &o))
		o.Namespace, o.ResourceVersion = "default", "1"
		meta, err := json.Marshal(o.ObjectMeta)
		c.check(err)
		fields := map[string]json.RawMessage{}
		c.check(json.Unmarshal(raw, &fields))
		fields["metadata"] = meta
		raw, err = json.Marshal(fields)
		c.check(err)
		resource := strings.ToLower(o.Kind) + "s"
		lists[resource] = append(lists[resource], raw)
	}
	listener, err := c.node.Listen("tcp", "127.0.0.1:8001")
	c.check(err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource, q := path.Base(r.URL.Path), r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != http.MethodGet || q.Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}`)
		case q.Get("watch") == "true":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			kind := map[string]string{"nodes": "Node", "services": "Service", "endpointslices": "EndpointSlice", "servicecidrs": "ServiceCIDR"}[resource]
			version := strings.TrimPrefix(strings.TrimPrefix(path.Dir(r.URL.Path), "/apis/"), "/api/")
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": map[string]string{"resourceVersion": "1"}, "items": append([]json.RawMessage{}, lists[resource]...)})
		}
	}))
	server.Listener = listener
	server.Start()
	c.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	c.kubeconfig = filepath.Join(c.t.TempDir(), "kubeconfig")
	c.check(os.WriteFile(c.kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "http://127.0.0.1:8001"}}], contexts: [{name: a, context: {cluster: a}}]}`), 0o600))
}

// sweep kills after the last call, and before each or one of them.
func (c *crashes) sweep(t *testing.T, random *rand.Rand) {
	c.socket = socketPath(t)
	_, err := c.node.Run(c.t.Context(), "nft", crashOthers)
	c.check(err)
	if c.phase.cluster {
		c.serveAPI(c.phase.after)
	}
	calls, _ := c.once(0)
	if len(calls) == 0 {
		c.t.Fatal("no call was counted")
	}
	points := random.Perm(len(calls))
	if !*crashAll {
		points = points[:1]
	} else {
		slices.Sort(points)
		points = points[min(*crashFrom-1, len(points)):min(*crashTo, len(points))]
	}
	killed := 0
	for _, k := range points {
		if _, fired := c.once(k + 1); fired {
			killed++
		}
	}
	if killed == 0 {
		c.t.Error("the process was never killed at a call")
	}
	kinds := map[string]int{}
	for _, call := range calls {
		kinds[call]++
	}
	c.t.Logf("%d calls %v, killed before %d of the %d tried", len(calls), kinds, killed, len(points))
}

// once carries out the phase and kills it before a call, or, with 0, after the last.
func (c *crashes) once(at int) (calls []string, fired bool) {
	p := c.phase
	what := fmt.Sprintf("killed before call %d", at)
	flags := []string{"--proxy-mode", c.mode, "--status-socket", c.socket}
	end := func(process *lab.Process) {
		process.Kill()
		<-process.Done()
	}
	services := func(manifest string) int { return strings.Count(manifest, "kind: Service\n") }
	if p.before != "" {
		c.save("web.yaml", web(0, 1, 2))
		mode := c.mode
		if p.former {
			mode = map[string]string{config.NFTables: config.IPTables, config.IPTables: config.NFTables}[mode]
		}
		first := c.runs(p.upgrade, "--proxy-mode", mode, "--status-socket", c.socket)
		c.until("it has programmed", func() bool { return c.synced(1, 3) })
		c.save("web.yaml", p.before)
		c.until("it has programmed", func() bool { return c.synced(services(p.before), 2) })
		end(first)
	}
	if p.takeOver {
		c.shell(crashKubeProxy[c.mode])
	}
	// Connections to web begin, if something serves it, and are recorded.
	var mu sync.Mutex
	type connection struct {
		begin  time.Time
		server string
		err    error
	}
	var connections []connection
	var load *lab.Load
	if (p.before != "" || p.cluster) && !p.cleanUp {
		var err error
		load, err = c.client.StartLoad(c.t.Context(), lab.TCP, webAddr, lab.LoadOptions{Pace: 5 * time.Millisecond, Result: func(begin time.Time, r lab.Reply, err error) {
			mu.Lock()
			defer mu.Unlock()
			connections = append(connections, connection{begin, r.Server, err})
		}})
		c.check(err)
	}
	args := append(c.runArgs(), flags...)
	if p.cleanUp {
		args = []string{"cleanup", fmt.Sprintf("--kube-proxy=%t", p.takeOver)}
	}
	if p.running {
		c.save("web.yaml", p.before)
	} else {
		c.save("web.yaml", p.after)
	}
	cmd := c.command(args...)
	if p.rollback {
		cmd = c.command(append([]string{"-c", `exec "$@"`, "sh", c.previous}, args...)...)
		cmd.Env = append(cmd.Env, trapped+"=sh")
	}
	trap := c.trap(cmd, !p.running, at)
	ended := func() bool {
		select {
		case <-trap.Done():
			return true
		default:
			return false
		}
	}
	// quiet reports whether no call has been made for a while: what is removed in the background is part of a phase.
	made, since := -1, time.Now()
	quiet := func() bool {
		if all, _ := trap.made(); len(all) != made {
			made, since = len(all), time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	}
	if p.running {
		c.until("it has programmed", func() bool { return c.synced(services(p.before), 2) && quiet() })
		trap.arm()
		c.save("web.yaml", p.after)
	}
	complete := func() bool {
		return c.synced(services(p.after), -1) && (!p.former || !c.hasFormer()) && (!p.cluster || !c.hasKubeProxy())
	}
	c.until("the phase has ended", func() bool { return ended() || !p.cleanUp && complete() && quiet() })
	end(trap.Process)
	// A child that was killed between fork and exec has the proxy's lock for a moment longer.
	c.until("the killed process and its children have gone", func() bool {
		sockets, err := c.node.Run(c.t.Context(), "cat", "/proc/net/unix")
		return err == nil && !strings.Contains(string(sockets), instanceSocket)
	})
	calls, fired = trap.made()
	if !fired {
		what = "killed after the last call"
	}

	second := c.runs(p.rollback, flags...)
	c.until("it has programmed after it was "+what, complete)
	acknowledged := time.Now()
	if p.rollback {
		(&release{site: c.site, name: "the former version", binary: c.previous, args: []string{"--manifests", c.dir, "--hostname-override", "n1", "--proxy-mode", c.mode}}).verified()
	} else if out, err := c.verify("--proxy-mode", c.mode); err != nil || !allTheSame.MatchString(out) {
		c.t.Errorf("%s: %s: verify: %v\n%s", what, last(calls), err, out)
	}
	serves := func(server string) bool { return server == "web-0" || server == "web-1" && p.after == web(0, 1) }
	got, err := reached(c.client, webAddr, 20)
	if err != nil {
		c.t.Errorf("%s: %s: %v", what, last(calls), err)
	}
	for server := range got {
		if !serves(server) {
			c.t.Errorf("%s: %s: a connection reached %s", what, last(calls), server)
		}
	}
	if load != nil {
		stats := load.Stop()
		if stats.Failed > 0 {
			c.t.Errorf("%s: %s: connections have failed: %v", what, last(calls), stats)
		}
		strays := map[string]int{}
		for _, k := range connections {
			if k.err == nil && (k.server == "web-2" || k.begin.After(acknowledged) && !serves(k.server)) {
				strays[k.server]++
			}
		}
		if len(strays) > 0 {
			c.t.Errorf("%s: %s: connections reached endpoints after their removal was acknowledged: %v", what, last(calls), strays)
		}
	}
	end(second)
	c.cleanup("--kube-proxy")
	if is := c.everything(); c.clean == "" {
		c.clean = is
	} else if is != c.clean {
		c.t.Errorf("%s: %s: a clean-up leaves\n%s\nwithout a crash:\n%s", what, last(calls), is, c.clean)
	}
	return calls, fired
}

// synced reports whether the running proxy has programmed so many Services and endpoints; -1 is any number.
func (c *crashes) synced(services, endpoints int) bool {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.socket)
	}}}
	answer, err := client.Get("http://slipstream/status")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	var s see.Status
	return json.NewDecoder(answer.Body).Decode(&s) == nil && s.Updated != nil && s.Waiting == nil && s.Services == services && (endpoints < 0 || s.Endpoints == endpoints)
}

// hasFormer reports whether the kernel has rules of the other mode.
func (c *crashes) hasFormer() bool {
	all := c.nft("list ruleset")
	if c.mode == config.NFTables {
		return strings.Contains(all, "SLIP-SERVICES")
	}
	return strings.Contains(all, "table ip slipstream")
}

// hasKubeProxy reports whether the kernel has rules of kube-proxy.
func (c *crashes) hasKubeProxy() bool {
	all := c.nft("list ruleset")
	return strings.Contains(all, "kube-proxy {") || strings.Contains(all, "KUBE-SVC")
}

// everything is what the kernel has of everybody.
func (c *crashes) everything() string {
	return c.shell("set +e; nft -s list ruleset; for v in iptables ip6tables; do $v-legacy-save | grep -v '^#'; done 2>&1; ipset save; ip -o addr show kube-ipvs0 2>&1; ipvsadm -Sn 2>&1; sysctl net.ipv4.conf.all.route_localnet net.ipv4.ip_forward; true")
}

// last is the call that a process was killed at.
func last(calls []string) string {
	if len(calls) == 0 {
		return "none"
	}
	return calls[len(calls)-1]
}
