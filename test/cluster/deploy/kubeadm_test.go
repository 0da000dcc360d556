// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestKubeadm runs the image in kube-proxy's DaemonSet as kubeadm makes it, with its
// ConfigMap and its rights.
func TestKubeadm(t *testing.T) {
	c := newCluster(t)
	text, err := os.ReadFile("testdata/kubeadm.yaml")
	c.check(err)
	all := objects{}
	for _, document := range strings.Split(string(text), "\n---\n") {
		all.add(t, []byte(document))
	}
	c.applyAll(all)
	client, address := c.service()
	leftovers(c)
	p := newPod(c, all, "kube-proxy")
	p.start()
	c.await("the Service", func() error { _, err := client.Connect(lab.TCP, address); return err })
	c.await("kube-proxy's leftovers go", func() error { return left(c) })
	healthz := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("healthz")}}}
	p.main().Ports = []corev1.ContainerPort{{Name: "healthz", ContainerPort: 10256}} // what kube-proxy serves
	if err := p.probe(healthz); err != nil {
		t.Error(err)
	}
	if _, refused := c.audited("system:serviceaccount:kube-system:kube-proxy"); len(refused) > 0 {
		t.Errorf("the API server refused %v", refused)
	}
}
