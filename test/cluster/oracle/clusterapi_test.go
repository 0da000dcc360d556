// SPDX-License-Identifier: Apache-2.0

package oracle

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
	if err := deleteAll(ctx, api); err != nil {
		return err
	}
	for _, ns := range Namespaces {
		_, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create namespace %s: %w", ns, err)
		}
	}
	create := metav1.CreateOptions{}
	for _, n := range c.Nodes {
		got, err := api.CoreV1().Nodes().Create(ctx, n, create)
		if err == nil {
			got.Status.Addresses = n.Status.Addresses
			_, err = api.CoreV1().Nodes().UpdateStatus(ctx, got, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("create Node %s: %w", n.Name, err)
		}
	}
	for _, svc := range c.Services {
		got, err := api.CoreV1().Services(svc.Namespace).Create(ctx, svc, create)
		if err == nil && len(svc.Status.LoadBalancer.Ingress) > 0 {
			got.Status.LoadBalancer = svc.Status.LoadBalancer
			_, err = api.CoreV1().Services(svc.Namespace).UpdateStatus(ctx, got, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("create Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
	}
	for _, s := range c.Slices {
		if _, err := api.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s, create); err != nil {
			return fmt.Errorf("create EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

func deleteAll(ctx context.Context, api k8s.Interface) error {
	now, all := metav1.DeleteOptions{}, metav1.ListOptions{}
	services, err := api.CoreV1().Services("").List(ctx, all)
	if err != nil {
		return err
	}
	for _, svc := range services.Items {
		if svc.Name != "kubernetes" { // the API server makes that again and again
			err = errors.Join(err, api.CoreV1().Services(svc.Namespace).Delete(ctx, svc.Name, now))
		}
	}
	for _, ns := range Namespaces {
		err = errors.Join(err, api.DiscoveryV1().EndpointSlices(ns).DeleteCollection(ctx, now, all))
	}
	return errors.Join(err, api.CoreV1().Nodes().DeleteCollection(ctx, now, all))
}

// ReadCluster returns the objects as the API server has them, with its defaults, sorted by
// namespace and name.
func ReadCluster(ctx context.Context, api k8s.Interface) (*Cluster, error) {
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
