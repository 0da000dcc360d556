// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"golang.org/x/sys/unix"
	imageutils "k8s.io/kubernetes/test/utils/image"
	"sigs.k8s.io/yaml"
)

var (
	proxyFlag = flag.String("proxy", "", "run the specs with slipstream, kube-proxy or both, separated by a comma")
	modeFlag  = flag.String("mode", "nftables", "nftables, iptables or both, separated by a comma")
	program   = flag.String("slipstream", "", "`path` of the command slipstream; built from this checkout by default")
	focus     = flag.String("focus", strings.Join(suites, "|"), "`regexp` of the specs' names")
	procs     = flag.Int("procs", 4, "how many specs run side by side")
	save      = flag.Bool("save", false, "add the results to docs/e2e.json, and write docs/support.md's table")
	keepLogs  = flag.String("logs", "", "an existing directory where all logs stay")
	patience  = flag.Duration("patience", 5*time.Minute, "how long to wait for what should come")
)

// suites are the specs about what a proxy does, or needs.
var suites = []string{
	`\[sig-network\] Services `, `\[sig-network\] Networking `, `\[sig-network\] DNS `, `\[sig-network\] DNS HostNetwork `,
	`\[sig-network\] EndpointSlice `, `\[sig-network\] Conntrack `, `\[sig-network\] KubeProxy `, `\[sig-network\] HostPort `,
	`\[sig-network\] .*\[Feature:IPv6DualStack\]`, `\[sig-network\] Traffic Distribution `, `\[sig-network\] LocalhostNodePorts `,
	`\[sig-network\] Connectivity Pod Lifecycle `, `\[sig-network\] Service CIDRs `, `\[sig-network\] NoSNAT `,
}

// features are those that this cluster has, of the specs that need some.
const features = "Feature: isSubsetOf {IPv6DualStack, LocalhostNodePorts, ServiceCIDRs}"

// unwanted is an entry of skip.yaml.
type unwanted struct {
	Spec   string `json:"spec"` // its whole name
	Reason string `json:"reason"`
}

func skipList(t *testing.T) (list []unwanted) {
	t.Helper()
	text, err := os.ReadFile("skip.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range list {
		if u.Spec == "" || u.Reason == "" {
			t.Errorf("skip.yaml: a spec and a reason are needed: %+v", u)
		}
	}
	return list
}

// TestE2E runs upstream's specs with each proxy, in a cluster of its own. Slipstream must pass all but those in
// skip.yaml; a spec that is there must fail with kube-proxy too.
func TestE2E(t *testing.T) {
	if *proxyFlag == "" {
		t.Skip("make e2e runs this, as it takes long")
	}
	list := skipList(t)
	// An interrupt ends the test, not the process, so that the clusters are cleaned up.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	for _, kind := range kinds(strings.Split(*proxyFlag, ","), strings.Split(*modeFlag, ",")) {
		t.Run(string(kind), func(t *testing.T) {
			var skip []string
			if kind.IsSlipstream() {
				for _, u := range list {
					skip = append(skip, regexp.QuoteMeta(u.Spec))
				}
			}
			c, _ := start(ctx, t, kind)
			r := c.specs(ctx, t, strings.Join(skip, "|"))
			for spec, o := range r.Specs {
				switch {
				case o.State == "passed" || o.State == "skipped":
				case kind.IsSlipstream():
					t.Errorf("%s: %s: %s", spec, o.State, o.Why)
				default:
					t.Logf("%s: %s: %s", spec, o.State, o.Why)
				}
			}
			for _, u := range list {
				if !kind.IsSlipstream() && r.Specs[u.Spec].State == "passed" {
					t.Errorf("skip.yaml has a spec that %s passes: %s", kind, u.Spec)
				}
			}
			if *save {
				if err := add(kind, r); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// kinds are all proxies in all modes.
func kinds(names, modes []string) (all []proxies.Kind) {
	for _, mode := range modes {
		for _, name := range names {
			kind := proxies.Kind(name + "-" + mode)
			if kind == proxies.Slipstream+"-nftables" {
				kind = proxies.Slipstream
			}
			all = append(all, kind)
		}
	}
	return all
}

// startCluster starts a cluster without a proxy. Its logs have this name.
func startCluster(ctx context.Context, t *testing.T, name string, nodes int) *Cluster {
	dir := t.TempDir()
	if *keepLogs != "" {
		dir = filepath.Join(*keepLogs, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Start(ctx, Options{Dir: dir, Nodes: nodes, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/slipstream-*"); len(left) > 0 {
			t.Logf("cgroups of this and other runs: %v", left)
		}
	})
	return c
}

// start starts a cluster with a proxy, and returns when pods have connected to Services. Configure changes the proxy's
// options on a node.
func start(ctx context.Context, t *testing.T, kind proxies.Kind, configure ...func(*Cluster, *Node, *proxies.Options)) (*Cluster, []*proxies.Proxy) {
	c := startCluster(ctx, t, string(kind), 2)
	dir := c.dir
	var running []*proxies.Proxy
	var err error
	binary := ""
	if kind.IsSlipstream() {
		if binary = *program; binary == "" {
			binary, err = proxies.BuildSlipstream(ctx, dir)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		access, err := c.Plane.NewAccess(ctx, dir, "proxy-"+n.Name())
		if err != nil {
			t.Fatal(err)
		}
		options := proxies.Options{Dir: dir, Binary: binary, Kubeconfig: access.Kubeconfig, ClusterCIDRs: site.ClusterCIDRs, Log: t.Logf}
		if kind.Mode() == "nftables" { // other modes serve NodePorts on loopback addresses by default
			options.Configure = func(config map[string]any) {
				config["featureGates"] = map[string]bool{"KubeProxyNFTablesLocalhostNodePorts": true}
				config["nodePortAddresses"] = []string{"primary", "localhost"}
			}
		}
		for _, change := range configure {
			change(c, n, &options)
		}
		p, err := proxies.Start(ctx, kind, n.Node.Node, options)
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, p)
	}
	// CoreDNS reaches the API server by its Service, so it is ready only with a proxy.
	within := fmt.Sprint("--timeout=", *patience)
	for _, args := range [][]string{
		{"-n", "kube-system", "rollout", "status", "deployment/coredns", within},
		{"run", "client", "--image=" + imageutils.GetE2EImage(imageutils.Agnhost), "--restart=Never", "--command", "--",
			"sh", "-c", "curl -sk --retry 60 --retry-all-errors https://kubernetes.default.svc.cluster.local/version"},
		{"wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/client", within},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			all, _ := c.Kubectl(ctx, "describe", "pods", "-A")
			t.Fatalf("%v\n%s", err, all)
		}
	}
	version, err := c.Plane.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if said, err := c.Kubectl(ctx, "logs", "client"); err != nil || !strings.Contains(said, version.GitVersion) {
		t.Fatalf("a pod asked the Service kubernetes for its version: %q, %v", said, err)
	}
	if _, err := c.Kubectl(ctx, "delete", "pod", "client"); err != nil {
		t.Fatal(err)
	}
	return c, running
}

// specs runs the specs, those that skip matches excepted, and returns what each has done.
func (c *Cluster) specs(ctx context.Context, t *testing.T, skip string) run {
	t.Helper()
	begin := time.Now()
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(c.dir, "report.json")
	var paths [2]string
	for i, name := range []string{"ginkgo", "e2e.test"} {
		var err error
		if paths[i], err = upstream.Nodes.Binary(ctx, name, t.Logf); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{fmt.Sprint("--procs=", *procs), "--timeout=3h", "--no-color", "--output-dir=" + c.dir, "--json-report=report.json",
		"--label-filter=" + features, "--focus=" + *focus}
	if skip != "" {
		args = append(args, "--skip="+skip)
	}
	p, err := c.Plane.Host.StartProgram(c.dir, "e2e", paths[0], append(args, paths[1], "--",
		"--kubeconfig="+c.Kubeconfig, "--kubectl-path="+c.Programs["kubectl"], "--provider=skeleton", "--num-nodes=2")...)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	text, err := os.ReadFile(report)
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &reports)
	}
	if err != nil {
		t.Fatal(p.Explain(errors.Join(err, p.Wait())))
	}
	r := run{
		Date: begin.UTC().Format(time.DateOnly), Kernel: unix.ByteSliceToString(uts.Release[:]),
		Minutes: time.Since(begin).Minutes(), Specs: map[string]outcome{},
	}
	// Of the failure, the snapshot has the first line, without this machine's paths.
	machine := strings.NewReplacer(filepath.Dir(paths[0])+"/", "", c.dir+"/", "")
	for _, report := range reports {
		for _, s := range report.SpecReports {
			name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			switch {
			case s.LeafNodeType != "It":
				if s.State != "passed" {
					t.Errorf("%s: %s: %s", s.LeafNodeType, s.State, s.Failure.Message)
				}
			case s.State != "skipped" || s.Failure.Message != "": // not skipped by a flag
				why, _, _ := strings.Cut(machine.Replace(s.Failure.Message), "\n")
				r.Specs[name] = outcome{s.ContainerHierarchyTexts[0], s.State, s.RunTime.Round(100 * time.Millisecond).Seconds(), why}
			}
		}
	}
	if len(r.Specs) == 0 {
		t.Fatal(p.Explain(errors.New("no spec has run")))
	}
	return r
}
