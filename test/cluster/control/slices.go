// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

// maxEndpointsPerSlice is kube-controller-manager's default.
const maxEndpointsPerSlice = 100

// RunEndpointSlices runs Kubernetes' own endpointslice controller until ctx ends, in this
// process. It makes EndpointSlices of Services with a selector and of Pods.
func (p *Plane) RunEndpointSlices(ctx context.Context) {
	all := informers.NewSharedInformerFactory(p.Client, 0)
	controller := endpointslice.NewController(ctx,
		all.Core().V1().Pods(), all.Core().V1().Services(), all.Core().V1().Nodes(), all.Discovery().V1().EndpointSlices(),
		maxEndpointsPerSlice, p.Client, 0)
	all.Start(ctx.Done())
	controller.Run(ctx, 2)
	all.Shutdown()
}
