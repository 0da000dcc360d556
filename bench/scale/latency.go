// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Requests are made with many on a connection, or with one.
var styles = []struct{ name, text string }{{"keepalive", "100 requests a connection"}, {"close", "a connection for each request"}}

func latencySeries(o *options) (all []bench.Series) {
	for _, n := range o.Services {
		for _, style := range styles {
			add := func(name, text string, unit bench.Unit) {
				all = append(all, bench.Series{
					Name: latencyName(style.name, name, n), Text: text, Unit: unit, Better: bench.Less, Paired: true, At: n,
					Show: []bench.Statistic{bench.P50, bench.Lowest, bench.Highest},
				})
			}
			add("mean", fmt.Sprintf("%s Services, %s: mean", bench.Thousands(n), style.text), bench.Nanoseconds)
			add("p50", "  median", bench.Nanoseconds)
			add("p99", "  99th percentile", bench.Nanoseconds)
			add("p999", "  99.9th percentile", bench.Nanoseconds)
			add("cpu", "  processor time of node, client and servers", bench.Percent)
			add("errors", "  requests that failed", bench.Percent)
		}
	}
	return all
}

func latencyName(style, what string, services int) string {
	return fmt.Sprintf("%s_%s_%d", style, what, services)
}

// station is a subject with its node, for all sizes of the cluster.
type station struct {
	*measurement
	processes []*lab.Program // the proxy and the servers, whose processor time counts
}

// measureLatency adds the requests' latencies to a result. Each proxy runs on a node of its own. One
// more node has the pods of the Service that is measured, each a process of nginx. The client is a
// pod on the proxy's node. Turns of all subjects alternate.
//
// Processor time is that of the client and, from its start to its end, of the servers and the proxy, in
// percent of one processor. Clients and servers do the kernel's work for the packets, too.
func measureLatency(ctx context.Context, o *options, r *bench.Result, subjects []subject) (err error) {
	r.Title = fmt.Sprintf("%d requests a second to one Service of %d nginx; %d rounds of turns of %d s", o.Rate, o.Endpoints, o.Rounds, o.Seconds)
	for _, program := range []*string{&o.nginx, &o.load} { // they run in other directories
		if *program, err = exec.LookPath(*program); err != nil {
			return err
		}
		if *program, err = filepath.Abs(*program); err != nil {
			return err
		}
	}
	e, err := newEnvironment(ctx, o, len(subjects)+1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	servers, err := e.serveNginx(ctx, e.nodes[len(subjects)])
	if err != nil {
		return err
	}
	var stations []*station
	for _, k := range subjects {
		m, err := e.newMeasurement(ctx, k)
		if err == nil {
			err = m.start()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k.Kind, err)
		}
		s := &station{measurement: m}
		defer func() { err = errors.Join(err, s.proxy.Close()) }()
		s.processes = append(servers[:len(servers):len(servers)], s.proxy.Program)
		stations = append(stations, s)
	}
	e.watched = true
	all := bench.NewSamples(len(r.Subjects))
	for _, n := range o.Services {
		if err := e.fill(ctx, n-1); err != nil {
			return err
		}
		for _, s := range stations {
			if err := s.await(ctx); err != nil {
				return fmt.Errorf("%s: %d Services: %w", s.subject, n, err)
			}
		}
		bench.Quiet(ctx)
		err := bench.Turns(ctx, o.Rounds, len(stations), func(_, i int) error {
			for _, style := range styles {
				if err := stations[i].request(ctx, style.name, n, all[i]); err != nil {
					return fmt.Errorf("%s: %d Services: %w", r.Subjects[i].Name, n, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		o.log("%d Services: %d rounds", n, o.Rounds)
	}
	return r.Fill(latencySeries(o), all)
}

// nginxService is the number of the Service that is measured, after all others.
const nginxService = maxServices - 1

// nginxURL is its address.
func nginxURL() string {
	return fmt.Sprintf("http://%v/", netip.AddrPortFrom(frontend(nginxService).Addr(), cluster.Port))
}

// serveNginx starts nginx in pods of a node and makes a Service of them.
func (e *environment) serveNginx(ctx context.Context, on *site.Node) (servers []*lab.Program, err error) {
	config := filepath.Join(e.dir, "nginx.conf")
	var temporary strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s; ", kind, e.dir)
	}
	// A reply as small as one packet.
	text := fmt.Sprintf(`daemon off; master_process off; user root; error_log stderr error; pid /dev/null;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000; %s
server { listen %d backlog=1024; location / { return 200 "ok\n"; } } }
`, temporary.String(), cluster.TargetPort)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	svc := e.Service(0)
	svc.Name = "nginx"
	svc.Spec.ClusterIP = frontend(nginxService).Addr().String()
	svc.Spec.ClusterIPs = nil
	slice := e.Slices(0)[0]
	slice.Name, slice.GenerateName = "nginx", ""
	slice.Labels["kubernetes.io/service-name"] = "nginx"
	slice.OwnerReferences = nil
	for i := range slice.Endpoints {
		name := fmt.Sprintf("nginx-%d", i+1)
		pod, err := on.Idle(name)
		if err != nil {
			return nil, err
		}
		slice.Endpoints[i].Addresses = []string{pod.Addr(false).String()}
		server, err := pod.StartProgram(e.dir, name, e.nginx, "-c", config, "-p", e.dir)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	client := e.site.Plane.Client
	if _, err := client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	_, err = client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
	return servers, err
}

// await waits until a sample of all Services, and the last one, answer, and the proxy has nothing
// more to do.
func (s *station) await(ctx context.Context) error {
	all := s.sample
	if s.filled > 0 {
		all = append(all[:len(all):len(all)], s.filled-1)
	}
	if _, err := s.awaitAll(ctx, all, time.Now()); err != nil {
		return s.proxy.Explain(err)
	}
	err := s.proxy.Await(ctx, func(ctx context.Context) error {
		_, _, err := s.node.client.Get(ctx, nginxURL())
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", nginxURL(), err)
	}
	return s.calm(ctx, s.proxy.PID())
}

// request makes a turn's requests.
func (s *station) request(ctx context.Context, style string, services int, into bench.Samples) error {
	before, err := bench.UsedBy(s.processes...)
	if err != nil {
		return err
	}
	begin := time.Now()
	load := exec.CommandContext(ctx, s.load, nginxURL(), strconv.Itoa(s.Rate), fmt.Sprintf("%ds", s.Seconds), "10", style)
	out, err := s.node.client.Output(load)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := bench.UsedBy(s.processes...)
	if err != nil {
		return err
	}
	after += load.ProcessState.UserTime() + load.ProcessState.SystemTime()
	var answer struct {
		DurationHistogram struct {
			Count       int
			Avg         float64
			Percentiles []struct{ Percentile, Value float64 }
		}
		RetCodes map[string]int
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("the load generator's output: %w", err)
	}
	h := answer.DurationHistogram
	if len(h.Percentiles) != 3 || h.Count == 0 {
		return fmt.Errorf("the load generator made %d requests and reports %d percentiles, want 3", h.Count, len(h.Percentiles))
	}
	add := func(what string, value float64) { into.Add(latencyName(style, what, services), value) }
	add("mean", h.Avg*1e9)
	add("p50", h.Percentiles[0].Value*1e9)
	add("p99", h.Percentiles[1].Value*1e9)
	add("p999", h.Percentiles[2].Value*1e9)
	add("cpu", 100*float64(after-before)/float64(took))
	add("errors", 100*float64(h.Count-answer.RetCodes["200"])/float64(h.Count))
	return nil
}
