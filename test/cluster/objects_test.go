// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// port is that of Services, over TCP and UDP.
const port = 80

// newService creates a Service of both families that selects pods by the label app; change, if
// not nil, modifies it before. It returns the API server's version of it.
func (s *system) newService(ctx context.Context, name, app string, change func(*corev1.ServiceSpec)) (*corev1.Service, error) {
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": app},
			IPFamilyPolicy: &both,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(targetPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: port, TargetPort: intstr.FromInt32(targetPort)},
			},
		},
	}
	if change != nil {
		change(&svc.Spec)
	}
	return s.Plane.Client.CoreV1().Services(site.Namespace).Create(ctx, svc, metav1.CreateOptions{})
}

// patchService changes a Service, or its subresource "status" as a load balancer's controller
// does, by a strategic merge patch with the JSON of patch.
func (s *system) patchService(ctx context.Context, name string, patch any, sub ...string) (*corev1.Service, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return s.Plane.Client.CoreV1().Services(site.Namespace).Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, sub...)
}

// deleteService deletes a Service, and its EndpointSlices, as the garbage collector would.
func (s *system) deleteService(ctx context.Context, name string) error {
	if err := s.Plane.Client.CoreV1().Services(site.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.Plane.Client.DiscoveryV1().EndpointSlices(site.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// clusterIP is where clients of a Service connect to, in one family; not valid if it has
// none there.
func clusterIP(svc *corev1.Service, ipv6 bool) netip.AddrPort {
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == ipv6 {
			return netip.AddrPortFrom(a, port)
		}
	}
	return netip.AddrPort{}
}

// nodePort is where a Service's TCP port is reached on a node, in one family.
func nodePort(svc *corev1.Service, n *site.Node, ipv6 bool) netip.AddrPort {
	return netip.AddrPortFrom(n.Addr(ipv6), uint16(svc.Spec.Ports[0].NodePort))
}

// targetPort is the port that pods answer on, over TCP and UDP.
const targetPort = 8080

// gracePeriod is how long the object of a terminating pod stays, in seconds, unless the
// test deletes it. It is longer than any test.
const gracePeriod = 3600

// runningPod is a pod of the cluster that answers.
type runningPod struct {
	*lab.Pod
	plane  *site.Plane
	labels map[string]string
	tcp    *lab.Server
	object *corev1.Pod
}

// newPod makes a pod on a node that answers, and its object, which is ready.
func (s *system) newPod(ctx context.Context, n *site.Node, name string, labels map[string]string) (_ *runningPod, err error) {
	p := &runningPod{plane: s.Plane, labels: labels}
	if p.Pod, err = n.Idle(name); err != nil {
		return nil, err
	}
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		server, err := p.Serve(protocol, netip.AddrPortFrom(netip.IPv6Unspecified(), targetPort))
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

func (p *runningPod) create(ctx context.Context) (err error) {
	pods := p.plane.Client.CoreV1().Pods(site.Namespace)
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
func (p *runningPod) SetReady(ctx context.Context, ready bool) (err error) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.object.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now(),
	}}
	object := p.object.DeepCopy()
	object.ResourceVersion = "" // whatever was changed meanwhile
	p.object, err = p.plane.Client.CoreV1().Pods(site.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// Served is how many connections the pod has answered, ever.
func (p *runningPod) Served() int64 { return p.tcp.Served() }

// Terminate begins to delete the pod: from now on it is terminating, and still answers.
func (p *runningPod) Terminate(ctx context.Context) error {
	return p.plane.Client.CoreV1().Pods(site.Namespace).Delete(ctx, p.Name(), metav1.DeleteOptions{})
}

// Drain stops listening, as a server does when it shuts down.
func (p *runningPod) Drain() { p.tcp.Drain() }

// Remove ends the pod and its connections, and then deletes its object, if it still exists.
func (p *runningPod) Remove(ctx context.Context) error {
	if err := p.Delete(); err != nil {
		return err
	}
	return p.Forget(ctx)
}

// Forget deletes only the pod's object, if it still exists.
func (p *runningPod) Forget(ctx context.Context) error {
	err := p.plane.Client.CoreV1().Pods(site.Namespace).Delete(ctx, p.Name(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
