// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	componentbase "k8s.io/component-base/config/v1alpha1"
)

// TestOptOuts reads what can opt out of the fast path: with kube-proxy's rights, which do not
// include it, and with those of the manifests. The kernel of most test machines has no fast path,
// so that only the source of objects runs. Package fastpath tests the rest.
func TestOptOuts(t *testing.T) {
	e := newEnv(t)
	here, there := e.pod(0, "web"), e.pod(1, "web")
	name := e.name("optout")

	access, err := e.Plane.NewAccess(t.Context(), e.dir, name)
	e.check(err)

	for _, event := range e.initial(access) {
		if kind := source.Kind(event.Object); kind == "Pod" || kind == "Namespace" {
			t.Errorf("not allowed to read it: %v", event)
		}
	}
	e.allowOptOuts(name)
	e.until("the rights apply", func() error {
		if all := e.initial(access); !slices.ContainsFunc(all, func(event source.Event) bool { return source.Kind(event.Object) == "Pod" }) {
			return fmt.Errorf("%d events, none for a pod", len(all))
		}
		return nil
	})

	events := e.events(t.Context(), access)
	annotated := func() {
		t.Helper()
		timeout := time.After(*patience)
		for missing := map[string]bool{"Pod": true, "Namespace": true}; len(missing) > 0; {
			select {
			case event := <-events:
				switch o := event.Object.(type) {
				case *corev1.Pod:
					if o.Name != here.Name() || len(o.Spec.Containers) > 0 || len(o.Status.PodIPs) != 2 || o.Status.PodIPs[0].IP != here.Addrs()[0].String() || o.Labels["app"] != "web" {
						t.Errorf("pod %+v", o)
					}
				case *corev1.Namespace:
				default:
					continue
				}
				if event.Type == source.Set && event.Object.GetAnnotations()["slipstream.io/fast-path"] == "off" {
					delete(missing, source.Kind(event.Object))
				}
			case <-timeout:
				t.Fatalf("waited in vain for the annotation of %v", missing)
			}
		}
	}
	const annotation = `{"metadata": {"annotations": {"slipstream.io/fast-path": %s}}}`
	patch := func(value string) {
		t.Helper()
		core, text := e.Plane.Client.CoreV1(), fmt.Appendf(nil, annotation, value)
		for _, p := range []*runningPod{there, here} {
			_, err := core.Pods(site.Namespace).Patch(t.Context(), p.Name(), types.MergePatchType, text, metav1.PatchOptions{})
			e.check(err)
		}
		_, err := core.Namespaces().Patch(t.Context(), site.Namespace, types.MergePatchType, text, metav1.PatchOptions{})
		e.check(err)
	}
	patch(`"off"`)
	defer patch("null")
	annotated()
}

// events runs a source of objects on the first node, for the fast path too, until ctx ends.
func (e *env) events(ctx context.Context, access *site.Access) <-chan source.Event {
	e.Helper()
	config, err := api.ClientConfig(componentbase.ClientConnectionConfiguration{Kubeconfig: access.Kubeconfig}, "", "test")
	e.check(err)
	config.Dial = e.Plane.RESTConfig().Dial // in the network namespace of the control plane
	client, err := api.NewClient(config)
	e.check(err)
	events := make(chan source.Event)
	s := api.New(client, api.Options{NodeName: e.Nodes[0].Name(), FastPath: true, OnError: func(err error) { e.Error(err) }})
	go func() {
		err := s.Run(ctx, func(batch []source.Event) {
			for _, event := range batch {
				select {
				case events <- event:
				case <-ctx.Done():
				}
			}
		})
		if err != nil {
			e.Error(err)
		}
		close(events)
	}()
	return events
}

// initial returns what such a source reads before it is synced.
func (e *env) initial(access *site.Access) (all []source.Event) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), *patience)
	defer cancel()
	for event := range e.events(ctx, access) {
		if event.Type == source.Synced {
			cancel()
			return all
		}
		all = append(all, event)
	}
	e.Fatalf("it is not synced; events %v", all)
	return nil
}

// allowOptOuts gives the proxies the rights of the manifests that kube-proxy does not have.
func (e *env) allowOptOuts(name string) {
	e.Helper()
	rbac := e.Plane.Client.RbacV1()
	_, err := rbac.ClusterRoles().Create(e.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}, Verbs: []string{"list", "watch"}},
		},
	}, metav1.CreateOptions{})
	e.check(err)
	_, err = rbac.ClusterRoleBindings().Create(e.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}},
	}, metav1.CreateOptions{})
	e.check(err)
	e.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if err := errors.Join(rbac.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}), rbac.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
			e.Error(err)
		}
	})
}
