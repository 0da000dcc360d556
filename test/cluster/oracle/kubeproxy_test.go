// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// startTimeout bounds how long kube-proxy may take to be of use. It is long: only a broken one
// gets there.
const startTimeout = 3 * time.Minute

// Where kube-proxy finds the API and serves its metrics, in its namespace.
const (
	apiAddress     = "127.0.0.1:6443"
	metricsAddress = "127.0.0.1:10249"
)

// runningKubeProxy is an upstream kube-proxy on the stage's n1.
type runningKubeProxy struct {
	dir  string
	mode string
	node *lab.Machine
	api  *http.Server
	*lab.Program
}

// starting is held while a kube-proxy starts: that changes an object.
var starting sync.Mutex

// run starts kube-proxy, fed by the control plane, and returns when it has programmed all
// that the API server has: Services, EndpointSlices, ServiceCIDRs and its Node. It writes to
// a folder of the subject's directory.
//
// It changes the Node object for a moment, as that is what has kube-proxy program
// everything once more: a change of ServiceCIDRs alone has not.
func (p kubeProxy) run(ctx context.Context, s *Stage, settings Settings) (_ *runningKubeProxy, err error) {
	binary, err := p.release.Binary(ctx, "kube-proxy", p.log)
	if err != nil {
		return nil, err
	}
	k := &runningKubeProxy{mode: settings.Mode, node: &s.N1.Machine}
	if k.dir, err = os.MkdirTemp(p.dir, "kube-proxy-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	if k.api, err = serveIn(k.node.Namespace, p.control.RESTConfig()); err != nil {
		return nil, err
	}
	config, err := k.writeConfig(settings)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	starting.Lock()
	defer starting.Unlock()
	zone, err := setZone(ctx, p.control, "not-yet")
	if err != nil {
		return nil, err
	}
	command := []string{binary, "--config=" + config, "--master=http://" + apiAddress, "--v=2"}
	if settings.Variant != "" {
		path, err := upstream.IPTablesPath(k.dir, settings.Variant)
		if err == nil && settings.Mode == IPVS {
			err = withoutPhysdev(k.dir, settings.Variant)
		}
		if err != nil {
			return nil, err
		}
		command = append([]string{"env", "PATH=" + path}, command...)
	}
	if k.Program, err = k.node.StartProgram(k.dir, "kube-proxy", command[0], command[1:]...); err != nil {
		return nil, err
	}
	if err := k.awaitSyncs(ctx, 1); err != nil {
		return nil, err
	}
	before, err := k.fullSyncs(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := setZone(ctx, p.control, zone); err != nil {
		return nil, err
	}
	if err := k.awaitSyncs(ctx, before+1); err != nil {
		return nil, err
	}
	if settings.Mode != NFTables { // which alone looks at ServiceCIDRs
		return k, nil
	}
	return k, k.Await(ctx, k.knowsServiceCIDRs)
}

// withoutPhysdev has the commands in the directory of IPTablesPath leave out a match of IPVS mode
// that the test kernels lack, "not from a port of a bridge". It is true on a stage: that has no
// bridges.
func withoutPhysdev(dir, variant string) error {
	for _, family := range []string{"iptables", "ip6tables"} {
		path := filepath.Join(dir, "iptables-"+variant, family+"-restore")
		script := fmt.Sprintf("#!/bin/sh\nsed 's/-m physdev ! --physdev-is-in//' | %s-%s-restore \"$@\"\n", family, variant)
		if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte(script), 0o700)); err != nil {
			return err
		}
	}
	return nil
}

func (k *runningKubeProxy) writeConfig(s Settings) (string, error) {
	config := filepath.Join(k.dir, "config.yaml")
	local := map[string]any{}
	switch s.DetectLocalMode {
	case "BridgeInterface":
		local["bridgeInterface"] = s.Interface
	case "InterfaceNamePrefix":
		local["interfaceNamePrefix"] = s.Interface
	}
	ofMode := map[string]any{"masqueradeAll": s.MasqueradeAll, "minSyncPeriod": "10ms"}
	switch s.Mode {
	case IPTables:
		ofMode["localhostNodePorts"] = s.LocalhostNodePorts
	case IPVS:
		delete(ofMode, "masqueradeAll")
	}
	b, err := yaml.Marshal(map[string]any{
		"iptables":   map[string]any{"masqueradeAll": s.MasqueradeAll}, // in IPVS mode too
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":               s.Mode,
		s.Mode:               ofMode,
		"hostnameOverride":   Node1,
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": metricsAddress,
		"detectLocalMode":    s.DetectLocalMode,
		"detectLocal":        local,
		"clusterCIDR":        plain.List(s.ClusterCIDRs, ","),
		"nodePortAddresses":  s.NodePortAddresses,
		// 0 leaves the kernel's settings, which are not all per namespace, alone.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return "", err
	}
	return config, os.WriteFile(config, b, 0o600)
}

// serveIn serves the API on a node's loopback address, by plain HTTP and without a need to
// log in: a reverse proxy in this process replaces a link between the two namespaces.
func serveIn(ns *lab.Namespace, c *rest.Config) (*http.Server, error) {
	target, err := url.Parse(c.Host)
	if err != nil {
		return nil, err
	}
	handler := httputil.NewSingleHostReverseProxy(target)
	handler.FlushInterval = -1 // watches
	handler.ErrorLog = log.New(io.Discard, "", 0)
	if handler.Transport, err = rest.TransportFor(c); err != nil {
		return nil, err
	}
	listener, err := ns.Listen("tcp", apiAddress)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler, ErrorLog: handler.ErrorLog}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return server, nil
}

// setZone gives the Node of n1 another zone, "" for none, and returns the one it had.
func setZone(ctx context.Context, c *upstream.ControlPlane, zone string) (was string, err error) {
	nodes := c.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, Node1, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	value := "null"
	if zone != "" {
		value = fmt.Sprintf("%q", zone)
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, corev1.LabelTopologyZone, value)
	_, err = nodes.Patch(ctx, Node1, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return n.Labels[corev1.LabelTopologyZone], err
}

// fullSyncs is how often kube-proxy has programmed everything, in the family in which
// that was less often. In IPVS mode it always programs everything.
func (k *runningKubeProxy) fullSyncs(ctx context.Context) (int, error) {
	status, body, err := k.node.Get(ctx, "http://"+metricsAddress+"/metrics")
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("metrics: status %d, error %v", status, err)
	}
	metric := "kubeproxy_sync_full_proxy_rules_duration_seconds_count"
	if k.mode == IPVS {
		metric = "kubeproxy_sync_proxy_rules_duration_seconds_count"
	}
	least := -1
	for _, family := range []string{"IPv4", "IPv6"} {
		var n int
		prefix := fmt.Sprintf("%s{ip_family=%q} ", metric, family)
		for line := range strings.Lines(body) {
			if text, ok := strings.CutPrefix(line, prefix); ok {
				if _, err := fmt.Sscan(text, &n); err != nil {
					return 0, err
				}
			}
		}
		if least < 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// awaitSyncs waits until everything has been programmed n times.
func (k *runningKubeProxy) awaitSyncs(ctx context.Context, n int) error {
	return k.Await(ctx, func(ctx context.Context) error {
		have, err := k.fullSyncs(ctx)
		if err == nil && have < n {
			err = fmt.Errorf("has programmed everything %d times, %d wanted", have, n)
		}
		return err
	})
}

// knowsServiceCIDRs says whether the rules are there that ServiceCIDRs lead to.
func (k *runningKubeProxy) knowsServiceCIDRs(ctx context.Context) error {
	for _, family := range []string{"ip", "ip6"} {
		out, err := k.node.Run(ctx, "nft", "list", "chain", family, "kube-proxy", "cluster-ips-check")
		if err != nil {
			return err
		}
		if !strings.Contains(string(out), "drop") {
			return fmt.Errorf("nothing is dropped in table %s kube-proxy, chain cluster-ips-check:\n%s", family, out)
		}
	}
	return nil
}

// Close ends kube-proxy and removes its files. Its rules stay.
func (k *runningKubeProxy) Close() error {
	var errs []error
	if k.Program != nil {
		errs = append(errs, k.Program.Close())
	}
	if k.api != nil {
		errs = append(errs, k.api.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(k.dir))...)
}
