// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Port is the port of Services, over TCP and UDP.
const Port = 80

// NewService creates a Service of both families that selects pods by the label app; change, if
// not nil, modifies it before. It returns the API server's version of it.
func (s *Site) NewService(ctx context.Context, name, app string, change func(*corev1.ServiceSpec)) (*corev1.Service, error) {
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": app},
			IPFamilyPolicy: &both,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: Port, TargetPort: intstr.FromInt32(TargetPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: Port, TargetPort: intstr.FromInt32(TargetPort)},
			},
		},
	}
	if change != nil {
		change(&svc.Spec)
	}
	return s.Plane.Client.CoreV1().Services(Namespace).Create(ctx, svc, metav1.CreateOptions{})
}

// PatchService changes a Service, or its subresource "status" as a load balancer's controller
// does, by a strategic merge patch with the JSON of patch.
func (s *Site) PatchService(ctx context.Context, name string, patch any, sub ...string) (*corev1.Service, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return s.Plane.Client.CoreV1().Services(Namespace).Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, sub...)
}

// DeleteService deletes a Service, and its EndpointSlices, as the garbage collector would.
func (s *Site) DeleteService(ctx context.Context, name string) error {
	if err := s.Plane.Client.CoreV1().Services(Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.Plane.Client.DiscoveryV1().EndpointSlices(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// ClusterIP is where clients of a Service connect to, in one family; not valid if it has
// none there.
func ClusterIP(svc *corev1.Service, ipv6 bool) netip.AddrPort {
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == ipv6 {
			return netip.AddrPortFrom(a, Port)
		}
	}
	return netip.AddrPort{}
}

// NodePort is where a Service's TCP port is reached on a node, in one family.
func NodePort(svc *corev1.Service, n *Node, ipv6 bool) netip.AddrPort {
	return netip.AddrPortFrom(n.Addr(ipv6), uint16(svc.Spec.Ports[0].NodePort))
}

// TargetPort is the port that pods answer on, over TCP and UDP.
const TargetPort = 8080

// gracePeriod is how long the object of a terminating pod stays, in seconds, unless the
// test deletes it. It is longer than any test.
const gracePeriod = 3600

// Pod is a pod of the cluster that answers.
type Pod struct {
	*lab.Pod
	site   *Site
	labels map[string]string
	tcp    *lab.Server
	object *corev1.Pod
}

// Pod makes a pod that answers, and its object, which is ready.
func (n *Node) Pod(ctx context.Context, name string, labels map[string]string) (_ *Pod, err error) {
	addrs, err := n.nextPod()
	if err != nil {
		return nil, err
	}
	p := &Pod{site: n.site, labels: labels}
	if p.Pod, err = n.Node.Pod(name, addrs...); err != nil {
		return nil, err
	}
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		server, err := p.Serve(protocol, netip.AddrPortFrom(netip.IPv6Unspecified(), TargetPort))
		if err != nil {
			return nil, errors.Join(err, p.Delete())
		}
		if protocol == lab.TCP {
			p.tcp = server
		}
	}
	if err := p.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("pod %s: %w", name, err), p.Delete())
	}
	return p, nil
}

func (p *Pod) create(ctx context.Context) (err error) {
	pods := p.site.Plane.Client.CoreV1().Pods(Namespace)
	p.object, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name(), Labels: p.labels},
		Spec: corev1.PodSpec{
			NodeName:                      p.Node().Name(),
			TerminationGracePeriodSeconds: ptr.To[int64](gracePeriod),
			Containers:                    []corev1.Container{{Name: "server", Image: "registry.invalid/server"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.object.Status.Phase = corev1.PodRunning
	for _, a := range p.Addrs() {
		p.object.Status.PodIPs = append(p.object.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	p.object.Status.PodIP = p.object.Status.PodIPs[0].IP
	return p.SetReady(ctx, true)
}

// SetReady says in the pod's status whether it is ready.
func (p *Pod) SetReady(ctx context.Context, ready bool) (err error) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.object.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now(),
	}}
	object := p.object.DeepCopy()
	object.ResourceVersion = "" // whatever was changed meanwhile
	p.object, err = p.site.Plane.Client.CoreV1().Pods(Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// Served is how many connections the pod has answered, ever.
func (p *Pod) Served() int64 { return p.tcp.Served() }

// Terminate begins to delete the pod: from now on it is terminating, and still answers.
func (p *Pod) Terminate(ctx context.Context) error {
	return p.site.Plane.Client.CoreV1().Pods(Namespace).Delete(ctx, p.Name(), metav1.DeleteOptions{})
}

// Drain stops listening, as a server does when it shuts down.
func (p *Pod) Drain() { p.tcp.Drain() }

// Remove ends the pod and its connections, and then deletes its object, if it still exists.
func (p *Pod) Remove(ctx context.Context) error {
	if err := p.Delete(); err != nil {
		return err
	}
	return p.Forget(ctx)
}

// Forget deletes only the pod's object, if it still exists.
func (p *Pod) Forget(ctx context.Context) error {
	err := p.site.Plane.Client.CoreV1().Pods(Namespace).Delete(ctx, p.Name(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
