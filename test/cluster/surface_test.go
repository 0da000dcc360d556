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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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

// TestProblems reads what is wrong on a node as docs/runbook.md says: through the API server, by somebody who may get nodes/proxy.
func TestProblems(t *testing.T) {
	e := newEnv(t)
	node := e.Nodes[0]
	e.start(proxies.Slipstream, node)
	pod := e.pod(1, "web")
	e.knows(node, e.service("web", nil), pod)
	config, user := e.Plane.RESTConfig(), e.name("reader")
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	e.check(err)
	get := func() (string, error) {
		b, err := client.RESTClient().Get().AbsPath("/api/v1/nodes/" + node.Name() + ":10256/proxy/problems").DoRaw(t.Context())
		return string(b), err
	}
	if body, err := get(); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %s, %v", body, err)
	}
	name := metav1.ObjectMeta{Name: user}
	_, err = e.Plane.Client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	e.check(err)
	_, err = e.Plane.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: name,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	e.check(err)
	says := func(unserved int) {
		t.Helper()
		want := fmt.Sprintf(`{"node":%q,"problems":[],"servicesWithoutEndpoints":%d}`+"\n", node.Name(), unserved)
		e.until("the answer is "+want, func() error {
			if body, err := get(); err != nil || body != want {
				return fmt.Errorf("%q (%v)", body, err)
			}
			return nil
		})
	}
	says(1) // default/kubernetes
	e.service("none", nil)
	says(2)
	e.check(e.Plane.API().Close())
	e.until("the node knows that the API server is gone", func() error {
		if status, body, err := node.Get(t.Context(), "http://127.0.0.1:10256/problems"); err != nil || status != http.StatusOK || !strings.Contains(body, `"problems":["APIServer"]`) {
			return fmt.Errorf("%d %s (%v)", status, body, err)
		}
		return nil
	})
	e.check(e.Plane.StartAPI(t.Context()))
	says(2)
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
