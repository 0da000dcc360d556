// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

// Read is the objects as the API server has them, with its defaults, sorted by
// namespace and name.
func Read(ctx context.Context, api k8s.Interface) (*Cluster, error) {
	c := &Cluster{}
	nodes, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	services, err := api.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	groups, err := api.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	cidrs, err := api.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range cidrs.Items {
		c.ServiceCIDRs = append(c.ServiceCIDRs, &cidrs.Items[i])
	}
	for i := range nodes.Items {
		c.Nodes = append(c.Nodes, &nodes.Items[i])
	}
	for i := range services.Items {
		c.Services = append(c.Services, &services.Items[i])
	}
	for i := range groups.Items {
		c.Slices = append(c.Slices, &groups.Items[i])
	}
	slices.SortFunc(c.Nodes, func(a, b *corev1.Node) int { return byName(a, b) })
	slices.SortFunc(c.Services, func(a, b *corev1.Service) int { return byName(a, b) })
	slices.SortFunc(c.Slices, func(a, b *discoveryv1.EndpointSlice) int { return byName(a, b) })
	return c, nil
}
