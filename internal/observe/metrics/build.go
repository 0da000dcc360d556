// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// The release of Kubernetes whose kube-proxy Slipstream is compatible with.
const (
	KubernetesMajor = "1"
	KubernetesMinor = "37"
)

// OnBuild serves kubernetes_build_info: Slipstream's version under the labels that all
// Kubernetes components have. Commit, tree state and date are empty if Go did not record
// them at build time.
func (m *Metrics) OnBuild(version string) {
	vcs := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			vcs[s.Key] = s.Value
		}
	}
	state := map[string]string{"true": "dirty", "false": "clean"}[vcs["vcs.modified"]]
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{
			"major": KubernetesMajor, "minor": KubernetesMinor,
			"git_version": version, "git_commit": vcs["vcs.revision"], "git_tree_state": state, "build_date": vcs["vcs.time"],
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	})
	info.Set(1)
	m.registry.MustRegister(info)
}
