// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSurface compares the visible interfaces of the two proxies in one cluster at one time:
// metrics, other answers on their ports, and Events.
func TestSurface(t *testing.T) {
	e := newEnv(t)
	all := func(o *proxies.Options) { // all metrics that there are
		before := o.Configure
		o.Configure = func(config map[string]any) {
			if before != nil {
				before(config)
			}
			config["featureGates"] = map[string]bool{"KubeProxyNFTablesLocalhostNodePorts": true}
			config["nodePortAddresses"] = []string{"primary", "localhost"}
		}
	}
	theirs, ours := e.start(proxies.KubeProxyNFTables, e.Nodes[0], all), e.start(proxies.Slipstream, e.Nodes[1], all)
	pod := e.pod(2, "web")
	svc := e.service("web", nil)
	for _, n := range e.Nodes[:2] {
		e.knows(n, svc, pod)
		e.reaches(&n.Machine, lab.UDP, clusterIP(svc, false), pod)
	}
	second := e.pod(2, "web")
	for _, n := range e.Nodes[:2] {
		e.knows(n, svc, pod, second)
	}
	for _, url := range []string{"http://127.0.0.1:10249/healthz", "http://127.0.0.1:10249/proxyMode", "http://127.0.0.1:10256/livez", "http://127.0.0.1:10256/healthz"} {
		status, body := e.get(theirs, url)
		gotStatus, got := e.get(ours, url)
		// Times, to the second.
		if clock := regexp.MustCompile(`"\d{4}-[^"]*"`); gotStatus != status || clock.ReplaceAllString(got, "") != clock.ReplaceAllString(body, "") {
			t.Errorf("%s: %d %q, kube-proxy says %d %q", url, gotStatus, got, status, body)
		}
	}
	if status, body := e.get(ours, "http://127.0.0.1:10249/configz"); status != http.StatusOK || !strings.Contains(body, e.Nodes[1].Name()) {
		t.Errorf("/configz: %d %s", status, body)
	}
	compareMetrics(t, e.metrics(theirs), e.metrics(ours))
	for i, reporter := range []string{"kube-proxy", "slipstream"} {
		n := e.Nodes[i]
		e.until("an Event that the proxy on "+n.Name()+" has started", func() error {
			list, err := e.Plane.Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Regarding.Kind == "Node" && e.Regarding.Name == n.Name() && e.Reason == "Starting" && e.ReportingController == reporter {
					return nil
				}
			}
			return fmt.Errorf("not among %d", len(list.Items))
		})
	}
}

// get reads a URL of a proxy's node.
func (e *env) get(p *proxies.Proxy, url string) (status int, body string) {
	e.Helper()
	status, body, err := p.Node.Get(e.Context(), url)
	e.check(err)
	return status, body
}

// metric is a metric's type, and the names of its labels.
type metric string

// metrics are those of a proxy, by name.
func (e *env) metrics(p *proxies.Proxy) map[string]metric {
	e.Helper()
	_, body := e.get(p, "http://127.0.0.1:10249/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	e.check(err)
	all := map[string]metric{}
	for name, family := range families {
		var labels []string
		for _, m := range family.Metric {
			for _, l := range m.Label {
				if !slices.Contains(labels, l.GetName()) {
					labels = append(labels, l.GetName())
				}
			}
		}
		slices.Sort(labels)
		all[name] = metric(fmt.Sprint(family.GetType(), labels))
	}
	return all
}

// foreign are metrics that kube-proxy has without meaning to: of packages that it shares
// with the API server, where nothing ever counts, and of the version of Go that it is built with.
var foreign = regexp.MustCompile("^(aggregator|apiserver|go_godebug)_")

// compareMetrics checks that all of kube-proxy's metrics exist.
func compareMetrics(t *testing.T, theirs, ours map[string]metric) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if foreign.MatchString(name) {
			continue
		}
		if got, ok := ours[name]; !ok {
			t.Errorf("metric %s %v is missing", name, theirs[name])
		} else if got != theirs[name] {
			t.Errorf("metric %s: %v, kube-proxy has %v", name, got, theirs[name])
		}
	}
	if len(theirs) < 20 {
		t.Errorf("kube-proxy has %d metrics", len(theirs))
	}
}
