// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// cluster is a node and an API server that authorizes and audits all requests.
type cluster struct {
	testing.TB
	*upstream.ControlPlane
	dir     string
	audit   string // the file
	node    *lab.Node
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
}

// apiServer is where it is.
var apiServer = netip.MustParseAddrPort("192.168.100.2:6443")

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// newCluster starts a cluster, with further flags of kube-apiserver.
func newCluster(t testing.TB, flags ...string) *cluster {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTables)
	c := &cluster{TB: t, dir: t.TempDir()}
	c.audit = filepath.Join(c.dir, "audit.log")
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	c.check(os.WriteFile(policy, []byte(auditPolicy), 0o600))
	l := kerneltest.NewLab(t)
	machine, err := l.Host("control-plane", netip.PrefixFrom(apiServer.Addr(), 24))
	c.check(err)
	c.node, err = l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	c.check(err)
	c.ControlPlane, err = upstream.StartControlPlane(t.Context(), upstream.ControlPlaneOptions{
		Dir:          c.dir,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Namespace:    machine.Namespace,
		Address:      apiServer,
		APIFlags:     append(flags, "--allow-privileged=true", "--audit-policy-file="+policy, "--audit-log-path="+c.audit),
		Log:          t.Logf,
	})
	c.check(err)
	t.Cleanup(func() {
		if err := c.ControlPlane.Close(); err != nil {
			t.Error(err)
		}
	})
	config := rest.CopyConfig(c.RESTConfig())
	config.ContentType = "application/json"
	c.dynamic, err = dynamic.NewForConfig(config)
	c.check(err)
	groups, err := restmapper.GetAPIGroupResources(c.Client.Discovery())
	c.check(err)
	c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	c.await("namespace kube-system", func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		return err
	})
	return c
}

func (c *cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// await repeats a call until it returns no error, for a minute.
func (c *cluster) await(what string, ready func() error) {
	c.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := ready()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s: not within a minute: %v", what, err)
		}
	}
}

// apply has the effect of "kubectl apply --server-side".
func (c *cluster) apply(ctx context.Context, u *unstructured.Unstructured, dryRun ...string) error {
	gvk := u.GroupVersionKind()
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	var r dynamic.ResourceInterface = c.dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		r = c.dynamic.Resource(m.Resource).Namespace(u.GetNamespace())
	}
	text, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = r.Patch(ctx, u.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: "test", FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}
