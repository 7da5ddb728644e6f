// Shows a Drawing (drawing.py). All texts are bound as text: nothing of the data is ever markup.
export default {
  props: { drawing: Object },
  template: `
    <svg class="jbi-drawing" role="group" :aria-label="drawing.label" preserveAspectRatio="xMidYMin meet"
         :viewBox="'-2 -2 ' + (drawing.width + 4) + ' ' + (drawing.height + 4)" :style="{maxWidth: drawing.width + 'px'}">
      <template v-for="(s, i) in drawing.shapes" :key="i">
        <path v-if="s.s === 'line'" :d="s.d" :class="['line', s.k]" />
        <g v-else-if="s.s === 'arrow'" :class="['arrow', s.k]">
          <title v-if="s.title">{{ s.title }}</title>
          <path :d="s.d" class="shaft" /><path :d="s.head" class="head" />
          <rect v-if="s.t" class="plate" :x="s.x - s.w / 2" :y="s.y - 9" :width="s.w" height="18" rx="4" />
          <text v-if="s.t" class="rate" :x="s.x" :y="s.y + 4" text-anchor="middle">{{ s.t }}</text>
        </g>
        <circle v-else-if="s.s === 'dot'" :cx="s.x" :cy="s.y" r="5" :class="['dot', s.k]"><title>{{ s.title }}</title></circle>
        <text v-else-if="s.s === 'text'" :x="s.x" :y="s.y" :class="['words', s.k]" :text-anchor="s.a">{{ s.t }}</text>
        <component v-else :is="s.href ? 'a' : 'g'" :href="s.href || null" :class="['box', s.k]" :aria-label="s.href ? s.title : null">
          <title>{{ s.title }}</title>
          <rect :x="s.x" :y="s.y" :width="s.w" :height="s.h" rx="8" />
          <svg :x="s.x + 8" :y="s.y" :width="s.w - 16" :height="s.h">
            <text v-for="(t, j) in s.texts" :key="j" x="2" :y="t.y" :class="t.k">{{ t.t }}</text>
          </svg>
        </component>
      </template>
    </svg>`,
};
