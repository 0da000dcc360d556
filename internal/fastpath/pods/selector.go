// SPDX-License-Identifier: Apache-2.0

// Package pods selects the pods whose connections do not take the fast path.
package pods

import (
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	corev1 "k8s.io/api/core/v1"
)

// variable is the pod in an expression.
type variable struct {
	Namespace   string            `cel:"namespace"`
	Name        string            `cel:"name"`
	Labels      map[string]string `cel:"labels"`
	Annotations map[string]string `cel:"annotations"`
}

// Compile returns a function that selects pods by an expression in CEL, such as
//
//	pod.namespace == "voip" || pod.labels["app"] == "sip"
//
// Its variables are pod.namespace, .name, .labels and .annotations (maps of strings). A pod for
// which the expression fails, for example because it lacks a label, is not selected. Compile
// returns nil for an empty expression, and an error of one line for an invalid one.
func Compile(text string) (selects func(*corev1.Pod) bool, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	e, err := expression.Compile[variable]("pod", text)
	if err != nil {
		return nil, err
	}
	return func(p *corev1.Pod) bool {
		is, _ := e.Eval(&variable{p.Namespace, p.Name, p.Labels, p.Annotations})
		return is
	}, nil
}
