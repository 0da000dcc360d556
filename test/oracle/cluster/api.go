// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/client-go/kubernetes"
)

// Write makes the objects in the API server exactly the cluster's. The Service
// "kubernetes", which the API server makes itself, stays.
func (c *Cluster) Write(ctx context.Context, api k8s.Interface) error {
	if err := Clear(ctx, api); err != nil {
		return err
	}
	for _, ns := range Namespaces {
		_, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create namespace %s: %w", ns, err)
		}
	}
	for _, n := range c.Nodes {
		if err := writeNode(ctx, api, n); err != nil {
			return fmt.Errorf("create Node %s: %w", n.Name, err)
		}
	}
	for _, svc := range c.Services {
		if err := writeService(ctx, api, svc); err != nil {
			return fmt.Errorf("create Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
	}
	for _, s := range c.Slices {
		if _, err := api.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

func writeNode(ctx context.Context, api k8s.Interface, n *corev1.Node) error {
	nodes := api.CoreV1().Nodes()
	got, err := nodes.Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	got.Status.Addresses = n.Status.Addresses
	_, err = nodes.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

func writeService(ctx context.Context, api k8s.Interface, svc *corev1.Service) error {
	services := api.CoreV1().Services(svc.Namespace)
	got, err := services.Create(ctx, svc, metav1.CreateOptions{})
	if err != nil || len(svc.Status.LoadBalancer.Ingress) == 0 {
		return err
	}
	got.Status.LoadBalancer = svc.Status.LoadBalancer
	_, err = services.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

// kubernetesService is made by the API server, again and again.
const kubernetesService = "kubernetes"

// Clear deletes all Nodes, Services and EndpointSlices.
func Clear(ctx context.Context, api k8s.Interface) error {
	stored, err := Read(ctx, api)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range stored.Slices {
		errs = append(errs, api.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}))
	}
	for _, svc := range stored.Services {
		if svc.Name != kubernetesService {
			errs = append(errs, api.CoreV1().Services(svc.Namespace).Delete(ctx, svc.Name, metav1.DeleteOptions{}))
		}
	}
	for _, n := range stored.Nodes {
		errs = append(errs, api.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// Read returns the objects as the API server has them, with its defaults, sorted by
// namespace and name.
func Read(ctx context.Context, api k8s.Interface) (*Cluster, error) {
	everything := metav1.ListOptions{}
	nodes, err1 := api.CoreV1().Nodes().List(ctx, everything)
	services, err2 := api.CoreV1().Services("").List(ctx, everything)
	endpoints, err3 := api.DiscoveryV1().EndpointSlices("").List(ctx, everything)
	cidrs, err4 := api.NetworkingV1().ServiceCIDRs().List(ctx, everything)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	return &Cluster{
		Nodes: sorted[*corev1.Node](nodes.Items), Services: sorted[*corev1.Service](services.Items),
		Slices: sorted[*discoveryv1.EndpointSlice](endpoints.Items), ServiceCIDRs: sorted[*networkingv1.ServiceCIDR](cidrs.Items),
	}, nil
}

// sorted returns pointers to objects, by namespace and name.
func sorted[P interface {
	*T
	metav1.Object
}, T any](items []T) (all []P) {
	for i := range items {
		all = append(all, &items[i])
	}
	slices.SortFunc(all, func(a, b P) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}
